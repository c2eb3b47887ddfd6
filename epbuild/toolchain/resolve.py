"""Resolution of a toolchain's requirements for a lock, without installing them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Problem, ToolchainError
from epbuild.core.installer import is_network_error, quote_report, run_uv
from epbuild.recipe.model import ToolchainSpec
from epbuild.recipe.requirement import is_same_version, normalize_name
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.fingerprint import probe
from epbuild.toolchain.lock import LockedEnvironment, Package
from epbuild.toolchain.platforms import MACOS_VERSION, PLATFORMS, translate_platform_tag
from epbuild.toolchain.provision import get_own_python
from epbuild.toolchain.pylock import read_origins

_VERSION = re.compile(r"(?:cpython[-@]?)?([0-9]+\.[0-9]+)(\.[0-9]+)?")
# Matches requirements that are not a version of a package in an index: an address, a file, or an installer option.
_PLACE = re.compile(r"\s*-|.*://|.*\s@\s|\s*[.~/\\]|[A-Za-z]:[\\/]", re.DOTALL)
_DIRECT = ("archive", "directory", "vcs")
_WHEEL_HINT = "Write <name>==<version>. If no index has the package, set UV_FIND_LINKS to the folder of its wheel."


class Python(Struct, frozen=True):
    """Python that a toolchain is resolved for: its name in fingerprints, and the arguments that select it in uv."""

    name: str
    arguments: tuple[str, ...]


def list_requirements(toolchain: ToolchainSpec) -> tuple[str, ...]:
    """Return the distinct requirements of a toolchain, sorted, with normalized spacing."""
    return tuple(sorted({" ".join(package.split()) for package in toolchain.packages}))


def parse_named_python(request: str | None) -> str | None:
    """Return the name of the Python that a recipe requests, such as `cpython-3.11`, or None if uv must find the Python."""
    if request is None:
        return get_own_python()
    found = _VERSION.fullmatch(request.strip().lower())
    return f"cpython-{found[1]}" if found else None


def find_python(toolchain: ToolchainSpec) -> Python:
    """Return the Python to provision a toolchain with. Raises ToolchainError (EPB309) if uv cannot find it."""
    request, name = toolchain.python, parse_named_python(toolchain.python)
    if name is not None:
        version = _VERSION.fullmatch((request or name).strip().lower())
        if version:
            # uv reads 3.11 as 3.11.0, the first release, so the lock suits all releases of 3.11.
            return Python(name, ("--python", sys.executable, "--python-version", f"{version[1]}{version[2] or ''}"))
        return Python(name, ("--python", sys.executable))
    done = run_uv(["python", "find", "--no-project", "--no-config", "--", str(request)])
    if done.returncode != 0:
        quote = quote_report(done.stderr)[1]
        message = f"toolchain '{toolchain.name}' requires the Python '{request}', which is not installed; uv reported: {quote}"
        hint = "Install this Python, or request a version such as '3.11'."
        raise ToolchainError(Problem("EPB309", message, toolchain.where, hint))
    interpreter = Path(done.stdout.strip())
    return Python(probe(interpreter, [], toolchain.where).python, ("--python", str(interpreter)))


def resolve_packages(toolchain: ToolchainSpec, python: Python, platform: str, preferred: Mapping[str, str]) -> LockedEnvironment:
    """Resolve a toolchain's requirements for one of PLATFORMS. Return the packages and their files.

    `preferred` has versions by distribution. These versions are kept if they meet the requirements. Raises ToolchainError (EPB309) if a
    requirement cannot be resolved, or cannot be locked because it is not a package of an index.
    """
    if place := next(filter(_PLACE.match, toolchain.packages), None):
        raise _make_not_lockable_error(toolchain, place)
    with tempfile.TemporaryDirectory(prefix="epbuild-lock-") as folder:
        wanted, found = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        wanted.write_text("\n".join([*list_requirements(toolchain), ""]), encoding="utf-8")
        if preferred:
            found.write_text(_format_preferences(preferred), encoding="utf-8")
        options = ["--no-config", "--no-header", "--no-annotate", "--format", "pylock.toml", "--output-file", str(found)]
        done = run_uv(
            ["pip", "compile", *options, *python.arguments, "--python-platform", PLATFORMS[platform], str(wanted)],
            {
                "UV_PYTHON_DOWNLOADS": "never",
                "MACOSX_DEPLOYMENT_TARGET": os.environ.get("MACOSX_DEPLOYMENT_TARGET", MACOS_VERSION),
            },
        )
        if done.returncode != 0:
            raise _make_resolution_error(toolchain, platform, done.stderr)
        document = tomllib.loads(found.read_text(encoding="utf-8"))
        return LockedEnvironment(python.name, _read_packages(toolchain, document), read_origins(document, Path(folder)))


def lock_installed_packages(environment: Environment) -> LockedEnvironment:
    """Return the installed packages of an environment as an entry of a lock."""
    versions = environment.fingerprint.distributions
    packages = [Package(normalize_name(name), versions[name]) for name in sorted(versions)]
    return LockedEnvironment(environment.fingerprint.python, tuple(packages))


def describe_deviations(environment: Environment, platform: str, locked: LockedEnvironment) -> list[str]:
    """Return clauses that describe how an environment deviates from the one locked for `platform`."""
    fingerprint = environment.fingerprint
    found = []
    if fingerprint.python != locked.python:
        found.append(f"the Python is {fingerprint.python} instead of {locked.python}")
    if not locked.is_installed and translate_platform_tag(fingerprint.platform) != platform:
        found.append(f"the platform is {fingerprint.platform} instead of {platform}")
    held = {normalize_name(name): version for name, version in fingerprint.distributions.items()}
    wanted = {package.name: package.version for package in locked.packages}
    for name in sorted(held.keys() | wanted.keys()):
        if name not in held:
            found.append(f"the package {name} {wanted[name]} is missing")
        elif name not in wanted:
            found.append(f"the package {name} {held[name]} is not locked")
        elif not is_same_version(held[name], wanted[name]):
            found.append(f"the version of {name} is {held[name]} instead of {wanted[name]}")
    rewritten = [] if locked.is_installed else environment.list_rewritten()
    if rewritten:
        verb = "was" if len(rewritten) == 1 else "were"
        found.append(f"{len(rewritten)} of the installed files {verb} changed after the installation, such as {rewritten[0]}")
    return found


def _read_packages(toolchain: ToolchainSpec, document: Mapping[str, Any]) -> tuple[Package, ...]:
    """Return the packages of a `pylock.toml` (PEP 751) for one platform, without their origins."""
    packages = []
    for item in document.get("packages", ()):
        name = str(item["name"])
        if any(kind in item for kind in _DIRECT):
            raise _make_not_lockable_error(toolchain, name)
        # The source distribution is used only if there is no wheel, since installers then build from it.
        files: Sequence[Mapping[str, Any]] = item.get("wheels") or [item[kind] for kind in ("sdist",) if kind in item]
        digests = sorted({str(file["hashes"]["sha256"]) for file in files if "sha256" in file.get("hashes", {})})
        if not digests:
            message = f"toolchain '{toolchain.name}' cannot be locked: the index has no SHA-256 for {name} {item.get('version')}"
            raise ToolchainError(Problem("EPB309", message, toolchain.where, "Use an index that publishes SHA-256 digests."))
        packages.append(Package(normalize_name(name), str(item["version"]), tuple(digests)))
    return tuple(sorted(packages))


def _format_preferences(versions: Mapping[str, str]) -> str:
    """Return versions as a `pylock.toml`, since uv prefers the versions in the file that it overwrites."""
    packages = (f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' for name, version in versions.items())
    return "\n".join(['lock-version = "1.0"\ncreated-by = "epbuild"\n', *packages])


def _make_not_lockable_error(toolchain: ToolchainSpec, package: str) -> ToolchainError:
    message = f"toolchain '{toolchain.name}' cannot be locked: '{package}' names a location instead of a version"
    return ToolchainError(Problem("EPB309", message, toolchain.where, _WHEEL_HINT))


def _make_resolution_error(toolchain: ToolchainSpec, platform: str, stderr: str) -> ToolchainError:
    text, quote = quote_report(stderr)
    hint = "Check the network." if is_network_error(text) else "Check the packages, and whether they exist for that platform."
    message = f"toolchain '{toolchain.name}' could not be locked for {platform}; uv reported: {quote}"
    return ToolchainError(Problem("EPB309", message, toolchain.where, hint))

"""Models in the wheels of Python packages, fetched once by uv."""

from __future__ import annotations

import difflib
import re
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from epbuild.cache.entries import list_files_below
from epbuild.cache.garbage import discard_all
from epbuild.cache.leases import lease
from epbuild.core.atomic import rename
from epbuild.core.digest import hash_document
from epbuild.core.errors import PlanError, Problem
from epbuild.core.installer import is_network_error, quote_report, run_uv
from epbuild.fetch.partial import FetchError, writing
from epbuild.recipe.address import PackageAddress

_METADATA = re.compile(r"[^/]+\.(?:dist-info|data)/")
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
_PYTHON = re.compile(r"Python ABI tag|Python implementation tag|Python version tag|satisfy Python|Requires-Python", re.IGNORECASE)
"""Messages of uv about a wheel for another Python. Any Python is acceptable, because the wheel's code is never run."""
_OTHER_BYTES = re.compile(r"Hash mismatch for .*?Computed:\s*sha256:([0-9a-f]{64})", re.DOTALL)
_NEAREST = 3


def fetch_from_wheel(
    address: PackageAddress, root: Path, digests: Sequence[str] = (), *, only_checked: bool = False, cancelled: threading.Event
) -> Path:
    """Return the path of the file at `address`. The file is in a folder of the store that contains the whole unpacked wheel.

    The whole wheel is needed because external data is beside the file. A missing wheel is fetched, and must have one of the `digests` if
    any are given. If `only_checked` is set, a stored wheel that was fetched without this check is ignored. Raises FetchError for a wheel
    that cannot be fetched (EPB320) or has another digest (EPB321). Raises PlanError for a file that is missing (EPB295) or in several
    folders (EPB296). Also raises StoreError if the disk fails, and Cancelled.
    """
    folder, unchecked = _find_folder(address, root, digests), _find_folder(address, root, ())
    if not only_checked and unchecked.is_dir() and not folder.is_dir():
        folder = unchecked
    with lease(root, f"remote-{folder.name}", cancelled=cancelled), writing(folder):
        if not folder.is_dir():
            _fetch(address, digests, folder)
        files = {path.relative_to(folder).as_posix() for path, _ in list_files_below(folder)}
    return folder / _find_file(address, files)


def _find_folder(address: PackageAddress, root: Path, digests: Sequence[str]) -> Path:
    """Return the folder in the store for a wheel that was checked against `digests`."""
    # The platform determines which wheel of a release is used.
    identity: dict[str, object] = {"wheel": address.requirement, "platform": sysconfig.get_platform()}
    if digests:
        identity["sha256"] = sorted(digests)
    return root / "remote" / hash_document(identity)


def find_wheel_digests(address: PackageAddress) -> tuple[str, ...]:
    """Return the sorted SHA-256 digests of all wheels of a release, for all platforms and Pythons. Nothing is installed.

    Raises FetchError for a release without wheels (EPB320), and for an index without digests (EPB322).
    """
    command = ["pip", "compile", "--no-config", "--no-deps", "--no-build", "--no-header", "--no-annotate", "--universal"]
    first_error = ""
    with tempfile.TemporaryDirectory(prefix="epbuild-wheel-") as folder:
        requirements, pylock = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        requirements.write_text(f"{address.requirement}\n", encoding="utf-8")
        # uv omits wheels for Pythons older than the requested one.
        for version in _PYTHONS:
            python = ["--python", sys.executable, "--python-version", version]
            output = ["--format", "pylock.toml", "--output-file", str(pylock)]
            process = run_uv([*command, *python, *output, str(requirements)], {"UV_PYTHON_DOWNLOADS": "never"})
            if process.returncode == 0:
                return _read_digests(address, pylock.read_text(encoding="utf-8"))
            first_error = first_error or process.stderr
            if not _PYTHON.search(process.stderr):
                break
    raise _make_no_wheel_error(address, first_error)


def _read_digests(address: PackageAddress, text: str) -> tuple[str, ...]:
    """Return the digests in a `pylock.toml` (PEP 751) of one package."""
    import tomllib

    wheels = [wheel for package in tomllib.loads(text)["packages"] for wheel in package.get("wheels", ())]
    digests = {wheel.get("hashes", {}).get("sha256") for wheel in wheels}
    if not digests or None in digests:
        message = f"the wheels of {address.requirement} cannot be locked: the package index does not provide their sha256 digests"
        raise FetchError(Problem("EPB322", message, hint="Use a package index that provides them."))
    return tuple(sorted(digests))


def _fetch(address: PackageAddress, digests: Sequence[str], folder: Path) -> None:
    """Fetch the wheel into a draft, and rename it to `folder`. Raises FetchError and OSError."""
    draft = folder.with_suffix(".part")
    discard_all(draft)
    draft.mkdir(parents=True)
    try:
        _install(address, digests, draft)
        for path, _ in list_files_below(draft):
            path.chmod(0o444)
        rename(draft, folder)
    finally:
        discard_all(draft)


def _install(address: PackageAddress, digests: Sequence[str], folder: Path) -> None:
    """Unpack the wheel with uv, without building packages. uv verifies `digests`, or else the digests of the index."""
    command = ["pip", "install", "--no-config", "--no-deps", "--no-build", "--python", sys.executable]
    # Files are copied, as a change to linked files would also change uv's cache.
    command += ["--link-mode", "copy", "--target", str(folder)]
    first_error = ""
    with tempfile.TemporaryDirectory(prefix="epbuild-wheel-") as requirements_folder:
        requirements = Path(requirements_folder, "wheel.txt")
        hashes = [f"--hash=sha256:{digest}" for digest in digests]
        requirements.write_text(" ".join([address.requirement, *hashes]), encoding="utf-8")
        source = [*(["--require-hashes"] if digests else []), "--requirements", str(requirements)]
        for python in ([], *(["--python-version", version] for version in reversed(_PYTHONS))):
            process = run_uv([*command, *python, *source])
            if process.returncode == 0:
                return
            other_digest = _OTHER_BYTES.search(process.stderr)
            if other_digest is not None:
                message = f"the wheel of {address.requirement} is not in the lock and was not unpacked"
                hint = "Check why the package index has a different wheel. If the change is intended, "
                hint += f"run `epbuild lock --upgrade-package {address.distribution}`."
                raise FetchError(Problem("EPB321", f"{message}: its sha256 is {other_digest[1]}", hint=hint))
            first_error = first_error or process.stderr
            if not _PYTHON.search(first_error):
                break
    raise _make_no_wheel_error(address, first_error)


def _make_no_wheel_error(address: PackageAddress, stderr: str) -> FetchError:
    reason, hint = _explain(address, stderr)
    return FetchError(Problem("EPB320", f"the package {address.requirement} cannot be fetched: {reason}", hint=hint))


def _explain(address: PackageAddress, stderr: str) -> tuple[str, str]:
    """Return the reason why uv could not fetch a wheel, and a hint."""
    text, quote = quote_report(stderr)
    name = address.distribution
    check_names = "Check its name and version, and uv's settings for the package index (UV_DEFAULT_INDEX, UV_FIND_LINKS)."
    if is_network_error(text) or "network was disabled" in text:
        return f"the package index cannot be reached; uv reported: {quote.rstrip('.')}", "Check the network, then run again."
    if f"{name} was not found" in text:
        return f"the package index has no package {name}", check_names
    if f"no version of {name}" in text:
        return f"the package index has no version {address.version} of {name}", check_names
    if "no usable wheels" in text:
        hint = "Save the model to a file and use its path: building the package would run its code."
        return "it has only a source distribution and no wheel", hint
    platforms = re.search(r"on the following platforms?: (.*)", text)
    if platforms:
        hint = "Save the model to a file and use its path, or use a version that has a wheel for this platform."
        return f"it has no wheel for this platform, only for {platforms[1].replace('`', '')}", hint
    return f"uv reported: {quote.rstrip('.')}", check_names


def _find_file(address: PackageAddress, files: Collection[str]) -> str:
    """Return the wheel's file at the path in the address, or else the file at this path in a top-level folder."""
    if address.file in files:
        return address.file
    content = sorted(file for file in files if not _METADATA.match(file))
    inner = [file for file in content if file.partition("/")[2] == address.file]
    if len(inner) > 1:
        message = f"the wheel of {address.requirement} has more than one file {address.file}: {', '.join(inner)}"
        raise PlanError(Problem("EPB296", message, hint="Write the full path from the root of the wheel."))
    if inner:
        return inner[0]
    models = [file for file in content if file.endswith(Path(address.file).suffix or ".onnx")]
    near = difflib.get_close_matches(address.file, models, n=_NEAREST, cutoff=0) if len(models) > _NEAREST else models
    hint = f"The wheel contains {', '.join(near)}{', ...' if len(models) > len(near) else ''}."
    if not models:
        hint = "The wheel contains no files of this type. Check the name of the package."
    raise PlanError(Problem("EPB295", f"the wheel of {address.requirement} has no file {address.file}", hint=hint))

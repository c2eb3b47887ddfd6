"""Provisioning by uv: one immutable environment for each set of requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Position, Problem, ToolchainError
from epbuild.core.installer import UvListener, is_network_error, quote_report, run_uv
from epbuild.core.shown import format_path
from epbuild.recipe.requirement import read_requirement
from epbuild.toolchain.lock import LockedEnvironment
from epbuild.toolchain.packages import hash_files, list_package_files

FORMAT = 1
_LOCKED_FORMAT = 2
"""Format of environments created from a lock. Since format 2, they contain a list of installed files."""
LOCKED = "locked-"
"""Prefix of the folder names of environments that were created from a lock, so with exactly the locked versions."""
_MAX_WAIT_SECONDS = 300.0
"""Maximum wait for the uv of a killed build."""
_SITES = ("lib/*/site-packages", "Lib/site-packages")


class Requirements(Struct, frozen=True):
    """Requirements for an environment: pip requirements, and a Python (None: the Python that runs epbuild).

    If `locked` is set, the environment contains exactly the locked packages. It also has the locked Python unless `python` names another
    Python.
    """

    packages: tuple[str, ...]
    python: str | None = None
    locked: LockedEnvironment | None = None

    def digest(self) -> str:
        """Return a name for these requirements on this platform, independent of order and spacing.

        Locked requirements and other requirements have different names.
        """
        document: dict[str, object] = {"format": FORMAT, "platform": sysconfig.get_platform()}
        if self.locked is None:
            document["packages"] = sorted(re.sub(r"\s+", "", package) for package in self.packages)
            document["python"] = self.python or get_own_python()
        else:
            document["format"] = _LOCKED_FORMAT
            document["locked"] = [[package.name, package.version, *package.files] for package in self.locked.packages]
            document["python"] = self.python or self.locked.python
        name = hash_bytes(json.dumps(document, sort_keys=True))[:20]
        return name if self.locked is None else f"{LOCKED}{name}"


def get_own_python() -> str:
    """Return the implementation and minor version of the Python that runs epbuild, such as `cpython-3.11`."""
    return f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"


def get_environment_folder(requirements: Requirements, home: Path) -> Path:
    """Return the folder of the environment for these requirements, whether or not it exists."""
    return home / requirements.digest()


def find_interpreter(folder: Path) -> Path | None:
    """Return the interpreter of the environment in a folder, or None if the environment is incomplete. Starts no process."""
    interpreter = _get_interpreter(folder)
    return interpreter if get_complete_file(folder).is_file() and interpreter.exists() else None


def get_complete_file(folder: Path) -> Path:
    """Return the path of the file that marks the environment in a folder as complete."""
    return folder / "complete"


def get_installed_file(folder: Path) -> Path:
    """Return the path of the list of files that were installed from a lock into the environment in a folder."""
    return folder / "installed.json"


def read_installed(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that was installed from a lock, by path relative to the packages' folder.

    The result is empty if there is no readable list. Then every file counts as changed.
    """
    try:
        document = json.loads(get_installed_file(folder).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def provision(
    requirements: Requirements, home: Path, *, name: str, where: Position | None, listener: UvListener | None = None
) -> Path:
    """Return the interpreter of the environment for `requirements`, provisioning it if it does not exist.

    `name` and `where` identify the toolchain in messages. `listener` receives uv's log. Only one process at a time provisions an
    environment. Raises ToolchainError (EPB301) that names the package and quotes uv's report.
    """
    folder = get_environment_folder(requirements, home)
    ready = find_interpreter(folder)
    if ready is not None:
        return ready
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")), _lock_for_uv(folder) as inherited:
            return find_interpreter(folder) or _create(requirements, folder, name, where, listener, inherited)
    except OSError as error:
        hint = "Free some space, or set EPBUILD_TOOLCHAIN_DIR to a writable folder."
        message = f"toolchain '{name}' could not be written to {format_path(folder)}: {error}"
        raise ToolchainError(Problem("EPB302", message, where, hint)) from error


@contextmanager
def _lock_for_uv(folder: Path) -> Iterator[tuple[int, ...]]:
    """Hold a lock on an environment, and yield the file descriptors that uv has to inherit.

    uv holds the lock until it ends, even if epbuild is killed. Without the lock, the next build would create the environment while uv
    still writes to it. On Windows, processes do not inherit locks. Raises TimeoutError, because a process that uv started may outlive
    uv.
    """
    if sys.platform == "win32":
        yield ()
        return
    import fcntl

    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    with folder.with_suffix(".uv").open("w", encoding="utf-8") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        else:
            raise TimeoutError("another program still writes to it")
        yield (file.fileno(),)


def _create(
    requirements: Requirements,
    folder: Path,
    name: str,
    where: Position | None,
    listener: UvListener | None,
    inherited_files: tuple[int, ...],
) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # remains of a killed run
    interpreter = _get_interpreter(folder)

    def uv(*arguments: str, changes: Mapping[str, str | None] | None = None) -> None:
        done = run_uv(arguments, changes, listener, inherited_files)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise _make_error(requirements, name, where, done.stderr, lacks_python=arguments[0] == "venv")

    # No hard links to uv's cache: changing a file in another environment would change it here (docs/internals/facts.md, "Hard links").
    install = ["pip", "install", "--no-config", "--link-mode", "copy", "--python", str(interpreter)]
    uv("venv", "--no-project", "--python", _select_python(requirements), str(folder / "env"))
    if requirements.locked is None:
        held = requirements.packages
        uv(*install, "--", *held)
    else:
        held = tuple(package.requirement for package in requirements.locked.packages)
        listed = folder / "locked.txt"
        pins = (
            [package.requirement, *(f"--hash=sha256:{one}" for one in package.files)] for package in requirements.locked.packages
        )
        listed.write_text("".join(" ".join(pin) + "\n" for pin in pins), encoding="utf-8")
        uv(*install, "--require-hashes", "--requirements", str(listed))
        # Check the lock: without a source of packages, this succeeds only if the locked packages meet all requirements of the recipe.
        uv(*install, "--offline", "--no-index", "--", *requirements.packages, changes={"UV_FIND_LINKS": None})
        get_installed_file(folder).write_text(json.dumps(_hash_installed(folder / "env")), encoding="utf-8")
    get_complete_file(folder).write_text(json.dumps(sorted(held)), encoding="utf-8")
    return interpreter


def _hash_installed(environment: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in an environment's site-packages, by relative path. Raises OSError."""
    found: dict[str, str] = {}
    for site in sorted({path.resolve() for pattern in _SITES for path in environment.glob(pattern)}):
        files = list_package_files(str(site)).files
        found |= zip((Path(file).relative_to(site).as_posix() for file in files), hash_files(files), strict=True)
    return found


def _select_python(requirements: Requirements) -> str:
    """Return the Python for the environment, as an argument of uv."""
    if requirements.python is not None:
        return requirements.python
    locked = requirements.locked
    return sys.executable if locked is None or locked.python == get_own_python() else locked.python.replace("-", "@")


def _make_error(
    requirements: Requirements, name: str, where: Position | None, stderr: str, *, lacks_python: bool
) -> ToolchainError:
    text, quote = quote_report(stderr)
    if requirements.locked is not None:
        message = f"toolchain '{name}' could not be created from the lock; uv reported: {quote}"
        hint = "Check the network." if is_network_error(text) else "If the lock is wrong, run `epbuild lock` to write a new one."
        if lacks_python:
            # A lock keeps its Python and its packages until a user upgrades the lock.
            hint = f"Install {requirements.locked.python}, which the lock requires, or update the lock with `epbuild lock --upgrade`."
        return ToolchainError(Problem("EPB307", message, where, hint))
    blamed = [package for package in requirements.packages if _is_named(package, text)]
    subject = f"uv could not install {', '.join(blamed)}" if blamed else "uv could not create the environment"
    hint = "Check the package names, the versions and the Python of the toolchain" + (
        ", and the network." if is_network_error(text) else "."
    )
    message = f"toolchain '{name}' could not be provisioned: {subject}; uv reported: {quote}"
    return ToolchainError(Problem("EPB301", message, where, hint))


def _is_named(requirement: str, text: str) -> bool:
    name = read_requirement(requirement).distribution  # normalized, as uv writes it
    return bool(name) and re.search(rf"(?<![\w.-]){name}(?![\w-])", text) is not None


def _get_interpreter(folder: Path) -> Path:
    return folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


_STARTED = re.compile(r"\s*Downloading (\S+) \(([0-9.]+)([KMGT]?i?B)\)")
_ARRIVED = re.compile(r"\s*Downloaded (\S+)")
_STAGES = re.compile(r"(Resolved|Building|Prepared|Installed) ")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MAX_NAMES = 3


class InstallReport(Protocol):
    """Receiver of an installation's progress."""

    def installing(self, doing: str, done: int, total: int) -> None:
        """Report uv's current work, the downloaded bytes, and the total bytes known so far."""


class InstallProgress(UvListener):
    """Listener that turns uv's log into progress reports."""

    def __init__(self, report: InstallReport, cancelled: threading.Event) -> None:
        super().__init__(cancelled)
        self._report = report
        self._sizes: dict[str, int] = {}
        self._arrived: set[str] = set()

    def logged(self, line: str) -> None:
        if started := _STARTED.match(line):
            self._sizes[started[1]] = int(float(started[2]) * _UNITS.get(started[3], 1))
        elif arrived := _ARRIVED.match(line):
            self._arrived.add(arrived[1])
        elif not _STAGES.match(line):
            return
        left = [name for name in self._sizes if name not in self._arrived]
        more = f" and {len(left) - _MAX_NAMES} more" if len(left) > _MAX_NAMES else ""
        stage = line.strip()
        doing = f"fetching {', '.join(left[:_MAX_NAMES])}{more}" if left else stage[:1].lower() + stage[1:]
        done = sum(size for name, size in self._sizes.items() if name in self._arrived)
        self._report.installing(doing, done, sum(self._sizes.values()))

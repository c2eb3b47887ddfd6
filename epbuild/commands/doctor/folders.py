"""Health of folders that epbuild writes to: permissions, space, links, paths."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from epbuild.commands.doctor.health import HealthCheck, HealthState, Topic
from epbuild.core.clone import CannotClone, clone
from epbuild.core.shown import format_path

_MIN_FREE_BYTES = 200 << 20
_LOW_FREE_BYTES = 5 << 30
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.s3fs", "glusterfs", "virtiofs"}
)
"""Types of network file systems."""
_MAX_SKEW_SECONDS = 5.0
_MAX_PATH = 260
"""Maximum length of a path on Windows, unless long paths are allowed."""
_MAX_NAMES = {"cache": len("actions/xx/.json") + 64, "toolchains": 190}
"""Length of the longest relative path inside the cache and the toolchains. In toolchains, it is in a package of an EP."""


class CheckedFolder(Struct, frozen=True):
    """Folder that epbuild writes to."""

    topic: Topic
    path: Path
    move: str
    """Instruction to choose another folder, as a clause in the imperative."""


def check_folder(place: CheckedFolder, disks: FileSystems) -> Iterator[HealthCheck]:
    """Check a folder. Yield one check for its state, and one check for each problem."""
    there, path = _find_existing(place.path), format_path(place.path)
    total, free = disks.space(there)
    shown = f"{path}: {disks.kind(there)}, {_format_gigabytes(free)} free of {_format_gigabytes(total)}"

    def check(state: HealthState, text: str, hint: str | None = None) -> HealthCheck:
        return HealthCheck(place.topic, state, text, hint)

    why = _find_write_obstacle(place.path, there)
    if why is not None:
        yield check("error", f"{path} is not writable: {why}", f"Get write permission, or {place.move}.")
        return
    yield check("ok", f"{shown}; {_describe_links(place.path) if place.path == there else 'created when needed'}")
    if free < _MIN_FREE_BYTES:
        hint = f"Free some space (`epbuild gc --max-size 5GB`), or {place.move}."
        yield check("error", f"{path} is full: {_format_gigabytes(free)} free", hint)
    elif free < _LOW_FREE_BYTES:
        hint = "A toolchain needs about 0.5 GB. Remove unused results with `epbuild gc`."
        yield check("warning", f"{path} is low on space: {_format_gigabytes(free)} free", hint)
    if disks.kind(there) in _NETWORK_FILE_SYSTEMS:
        hint = f"Build in this folder on only one machine at a time, because machines do not see each other's locks, or {place.move}."
        yield check("warning", f"{path} is on a network file system ({disks.kind(there)})", hint)
    if place.path == there and (skew := _measure_skew(place.path)) > _MAX_SKEW_SECONDS:
        hint = "Correct the clock of the file server. epbuild detects changes by file times."
        yield check("warning", f"the clock of the file system is off by {skew:.0f} s", hint)


def check_path_length(places: Iterable[CheckedFolder], disks: FileSystems) -> HealthCheck | None:
    """Check the length of paths on Windows. Return None on other systems."""
    if disks.system != "win32":
        return None
    if disks.long_paths():
        return HealthCheck("paths", "ok", "Windows allows long paths")
    for place in places:
        longest = len(str(place.path)) + 1 + _MAX_NAMES.get(place.topic, 120)
        if longest > _MAX_PATH:
            text = f"paths below {format_path(place.path)} can have {longest} characters, but Windows allows {_MAX_PATH}"
            return HealthCheck("paths", "warning", text, f"Enable long paths in Windows (LongPathsEnabled), or {place.move}.")
    return HealthCheck("paths", "ok", f"within the limit of Windows ({_MAX_PATH} characters)")


def check_file_systems(cache: Path, workspace: Path) -> HealthCheck | None:
    """Return a note if the store and the workspace are on different file systems. In that case, files are copied instead of linked."""
    with suppress(OSError):
        if _find_existing(cache).stat().st_dev != _find_existing(workspace).stat().st_dev:
            text = "not on the file system of the store: outputs and models are copied instead of linked"
            return HealthCheck(
                "workspace",
                "note",
                text,
                "To save time and space, set EPBUILD_CACHE_DIR to a folder on the file system of the workspace.",
            )
    return None


def get_file_system(path: Path) -> str:
    """Return the type of the file system of a path, or `unknown`."""
    import psutil

    place, best = os.path.realpath(path), ("", "unknown")
    with suppress(OSError, psutil.Error, RuntimeError):
        for part in psutil.disk_partitions(all=True):
            inside = place == part.mountpoint or place.startswith(os.path.join(part.mountpoint, ""))  # noqa: PTH118
            if inside and len(part.mountpoint) >= len(best[0]):
                best = (part.mountpoint, part.fstype or "unknown")
    return best[1]


def _are_long_paths_allowed() -> bool:
    from epbuild.core.windows import are_long_paths_allowed

    return are_long_paths_allowed()


def _get_space(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


class FileSystems(Struct, frozen=True):
    """Functions that read the state of file systems. Tests replace them."""

    space: Callable[[Path], tuple[int, int]] = _get_space
    """Function that returns the total and free bytes of a path's file system."""
    kind: Callable[[Path], str] = get_file_system
    system: str = sys.platform
    long_paths: Callable[[], bool] = _are_long_paths_allowed


def _find_existing(path: Path) -> Path:
    """Return the path or its nearest existing parent."""
    for found in (path, *path.parents):
        with suppress(OSError):
            if found.exists():
                return found
    return Path(path.anchor or ".")


def _find_write_obstacle(path: Path, there: Path) -> str | None:
    if not there.is_dir():
        return f"expected a folder, found a file: {there}"
    if there != path:  # The check must not create folders.
        return None if os.access(there, os.W_OK | os.X_OK) else f"this user may not write to {there}"
    try:
        with tempfile.TemporaryFile(dir=path, prefix=".epbuild-doctor-") as file:
            file.write(b"epbuild")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _describe_links(folder: Path) -> str:
    """Describe how files in a folder can share their contents, such as `hard links and clones`."""
    ways = []
    with suppress(OSError), tempfile.TemporaryDirectory(dir=folder, prefix=".epbuild-doctor-") as place:
        source, other = Path(place, "source"), Path(place, "other")
        source.write_bytes(b"epbuild")
        with suppress(OSError):
            other.hardlink_to(source)
            ways.append("hard links")
        with suppress(OSError, CannotClone), source.open("rb") as one, Path(place, "clone").open("wb") as two:
            if clone(one.fileno(), two.fileno()):
                ways.append("clones")
    return " and ".join(ways) or "no hard links or clones, so files are copied"


def _measure_skew(folder: Path) -> float:
    """Return the seconds by which the file system's clock differs from this machine's clock."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".epbuild-doctor-") as file:
        file.write(b"epbuild")
        file.flush()
        return abs(Path(file.name).stat().st_mtime - time.time())
    return 0.0


def _format_gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

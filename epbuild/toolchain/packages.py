"""Files of installed packages: listing, hashing, and detecting changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from epbuild.core.digest import hash_bytes, hash_file
from epbuild.core.host import get_change_time_ns

REPAIRED = ".libs"
_LIBRARY_SUFFIXES = (".so", ".dll", ".pyd", ".dylib")
_BYTECODE = "__pycache__"


class FileState(NamedTuple):
    """State of a file or folder. Times are in nanoseconds since the epoch; `ctime_ns` is from `get_change_time_ns`."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int


def get_state(path: str) -> FileState | None:
    """Return the state of a file or folder, or None if it does not exist."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - called hundreds of times before and after every compile
    except OSError:
        return None
    return FileState(seen.st_size, seen.st_mtime_ns, get_change_time_ns(path, seen), seen.st_ino, seen.st_nlink)


def is_touched(path: str, before: Mapping[str, FileState | None], now: Mapping[str, FileState | None]) -> bool:
    """Return whether a file was written or temporarily replaced between two observations. `before` and `now` map paths to states.

    Installers share equal files between environments by hard links. Adding or removing a link in another environment changes the file's
    link count and ctime, but not the folder of `path`.
    """
    old, new = before.get(path), now.get(path)
    if old is None or new is None or old[:2] != new[:2] or old.inode != new.inode:
        return old != new
    folder = os.path.dirname(path)  # noqa: PTH120
    return old.ctime_ns != new.ctime_ns and (old.links == new.links or before.get(folder) != now.get(folder))


class Tree(Struct, frozen=True):
    """Sorted paths of a package's files, and paths of the folders that contain them."""

    files: list[str]
    folders: list[str]


def list_package_files(package: str) -> Tree:
    """List the files in a package's folder and in the `.libs` folder that wheel repair tools add beside it.

    Python's bytecode caches are left out. Links to files and folders are followed. Raises OSError for a folder that cannot be read.
    """
    files: list[str] = []
    folders: list[str] = []
    known: set[tuple[int, int]] = set()
    pending = [folder for folder in (package, package + REPAIRED) if os.path.isdir(folder)]  # noqa: PTH112
    while pending:
        folder = pending.pop()
        seen = os.stat(folder)  # noqa: PTH116
        if (seen.st_dev, seen.st_ino) in known:  # a link to a folder above itself
            continue
        known.add((seen.st_dev, seen.st_ino))
        folders.append(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    files.append(entry.path)
                elif entry.is_dir() and entry.name != _BYTECODE:
                    pending.append(entry.path)
    return Tree(sorted(files), folders)


def is_library(name: str) -> bool:
    return name.endswith(_LIBRARY_SUFFIXES) or ".so." in name


def hash_files(paths: Iterable[str]) -> list[str]:
    """Return the SHA-256 of each file, hashing several at a time. Raises OSError."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(hash_file, paths))


def hash_file_list(files: Mapping[str, str]) -> str:
    """Return one digest of the names and digests of all `files`."""
    return hash_bytes("".join(f"{files[name]}  {name}\n" for name in sorted(files)))

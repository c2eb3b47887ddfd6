"""Entries of an output folder, and unused names beside it."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import shutil
import stat
from pathlib import Path

from msgspec import Struct

from epbuild.core.digest import hash_bytes
from epbuild.core.file_use import retry_in_use
from epbuild.core.safepath import MAX_NAME_BYTES

_MARK = ".epbuild-"
_MAX_SUFFIX_BYTES = 32
"""Maximum length of the suffix in the name of a temporary entry: a word, an inode in hex, and eight random digits."""


class Entries(Struct, frozen=True):
    """Contents of a folder and its subfolders, as sorted POSIX paths."""

    files: list[str]
    """All entries that are not folders, including pipes and links to folders."""
    folders: list[str]
    mounted: list[str]
    """Folders on other file systems. Their content is not listed."""


def list_entries(folder: Path) -> Entries:
    """List everything below a folder, without following links. Raises OSError if a part of it is unreadable."""
    found = Entries([], [], [])
    device = folder.stat().st_dev
    pending = [(os.fspath(folder), "")]
    while pending:
        place, prefix = pending.pop()
        with os.scandir(place) as listing:
            for entry in listing:
                name = f"{prefix}{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    found.files.append(name)
                elif os.lstat(entry.path).st_dev != device:
                    found.mounted.append(name)
                else:
                    found.folders.append(name)
                    pending.append((entry.path, f"{name}/"))
    for names in (found.files, found.folders, found.mounted):
        names.sort()
    return found


def get_file_identity(path: Path) -> tuple[int, int]:
    """Return a value that identifies a file. All hard links to the file have the same value. Raises OSError."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def are_identical(one: Path, other: Path) -> bool:
    """Return whether either path can be removed without loss: both are the same file, equal files, or equal links."""
    try:
        first, second = one.lstat(), other.lstat()
        if first.st_ino and os.path.samestat(first, second):
            return True
        if stat.S_ISLNK(first.st_mode) and stat.S_ISLNK(second.st_mode):
            return one.readlink() == other.readlink()
        return stat.S_ISREG(first.st_mode) and stat.S_ISREG(second.st_mode) and filecmp.cmp(one, other, shallow=False)
    except FileNotFoundError:
        return False


def is_special(path: Path) -> bool:
    """Return whether a pipe, a socket or a device is at `path`. Raises OSError."""
    mode = path.lstat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def copy_folder_metadata(source: Path, target: Path, *, times: bool) -> None:
    """Copy the owner, mode and attributes of a folder to another folder, as far as permissions allow.

    If `times` is True, also copy the access and modification times.
    """
    before, now = source.stat(), target.stat()
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with contextlib.suppress(OSError):
            os.chown(target, before.st_uid, before.st_gid)
    shutil.copystat(source, target)
    if not times:
        os.utime(target, ns=(now.st_atime_ns, now.st_mtime_ns))


def make_writable(folder: Path) -> None:
    """Allow the current user to change the contents of a folder. Raises OSError."""
    mode = folder.stat().st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        folder.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)


def remove_tree(folder: Path) -> None:
    """Remove an unused folder as far as possible. Files that remain only use disk space until the next run removes them."""
    try:
        folder.rmdir()  # most folders are empty or renamed by now
    except FileNotFoundError:
        return
    except OSError:
        _remove_with_contents(folder)


def _remove_with_contents(folder: Path) -> None:
    with contextlib.suppress(OSError):
        retry_in_use(lambda: shutil.rmtree(folder))
        return
    with contextlib.suppress(OSError):
        make_writable(folder)
        for name in list_entries(folder).folders:
            make_writable(folder / name)
    shutil.rmtree(folder, ignore_errors=True)


def make_hidden_name(name: str, suffix: str) -> str:
    """Return the name of a temporary entry beside the output `name`. An empty suffix gives the prefix of all such names."""
    return f".{_shorten(name, 1 + len(_MARK) + _MAX_SUFFIX_BYTES)}{_MARK}{suffix}"


def parse_hidden_prefix(name: str) -> str | None:
    """Return the prefix of a temporary entry's name, or None if `name` is not the name of a temporary entry."""
    before, mark, _ = name.rpartition(_MARK)
    return f"{before}{mark}" if mark and name.startswith(".") else None


class HiddenFolders:
    """Finder of temporary entries beside outputs. It lists each folder only once.

    If a build is killed after the listing, the next command finds its entries.
    """

    def __init__(self) -> None:
        self._found: dict[Path, dict[str, list[Path]]] = {}

    def list_beside(self, output: Path) -> list[Path]:
        """Return the temporary entries beside an output, sorted. Raises OSError."""
        parent = output.parent
        if parent not in self._found:
            found: dict[str, list[Path]] = {}
            with os.scandir(parent) as listing:
                for name in sorted(entry.name for entry in listing if _MARK in entry.name):
                    prefix = parse_hidden_prefix(name)
                    if prefix is not None:
                        found.setdefault(prefix, []).append(parent / name)
            self._found[parent] = found
        return self._found[parent].get(make_hidden_name(output.name, ""), [])


def choose_free_name(path: Path, content: Path) -> Path:
    """Return a path beside `path` at which to save the file `content`: an unused path, or an existing file with equal content."""
    for number in itertools.count(1):
        ending = ".saved" if number == 1 else f".saved-{number}"
        candidate = path.with_name(f"{_shorten(path.name, len(ending))}{ending}")
        if not os.path.lexists(candidate) or are_identical(candidate, content):
            return candidate
    raise AssertionError("unreachable: the numbers are unlimited")


def _shorten(name: str, room: int) -> str:
    """Shorten a name so that a file name has room for `room` more bytes. Different names remain different."""
    data = os.fsencode(name)
    if len(data) + room <= MAX_NAME_BYTES:
        return name
    digest = hash_bytes(data)[:12]
    return f"{data[: MAX_NAME_BYTES - room - len(digest) - 1].decode(errors='ignore')}~{digest}"

"""Entries of an output folder, and free names beside it."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import shutil
import stat
from pathlib import Path

from epbuild.core.digest import digest_of
from epbuild.core.safepath import MAX_NAME_BYTES
from epbuild.core.values import dataclass

_MARK = ".epbuild-"
_LONGEST_SUFFIX_BYTES = 32
"""Of what follows a hidden name's mark: a word, an inode in hex, and eight random digits."""


@dataclass(frozen=True)
class Entries:
    """What is below a folder, as sorted POSIX paths."""

    files: list[str]
    """Everything but folders: links, also to folders, and pipes among them."""
    folders: list[str]
    mounted: list[str]
    """Folders of another file system, into which nobody looked."""


def entries(folder: Path) -> Entries:
    """Everything below a folder, following no link. Raises OSError when some of it cannot be seen."""
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


def identity(path: Path) -> tuple[int, int]:
    """What two names of one file have in common. Raises OSError."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def identical(one: Path, other: Path) -> bool:
    """Whether both are there, and nothing is lost with one of them: they are one file, equal ones, or links to the same place."""
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


def as_it_was(source: Path, target: Path, *, times: bool) -> None:
    """Give a folder the owner, the mode and the attributes of another, as far as this user may; its `times` if it is the user's alone."""
    before, now = source.stat(), target.stat()
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with contextlib.suppress(OSError):
            os.chown(target, before.st_uid, before.st_gid)
    shutil.copystat(source, target)
    if not times:
        os.utime(target, ns=(now.st_atime_ns, now.st_mtime_ns))


def make_writable(folder: Path) -> None:
    """Let this user change what is in a folder. Raises OSError."""
    mode = folder.stat().st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        folder.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)


def remove_tree(folder: Path) -> None:
    """Remove a folder that nobody needs, as far as that goes: the rest costs space, and is for the next run."""
    try:
        folder.rmdir()  # most are empty by then, or were renamed
    except FileNotFoundError:
        return
    except OSError:
        _remove_with_contents(folder)


def _remove_with_contents(folder: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
        return
    with contextlib.suppress(OSError):
        make_writable(folder)
        for name in entries(folder).folders:
            make_writable(folder / name)
    shutil.rmtree(folder, ignore_errors=True)


def hidden_name(name: str, suffix: str) -> str:
    """The name of what lies beside the output `name` for a while; without a suffix, what all of these begin with."""
    return f".{_shortened(name, 1 + len(_MARK) + _LONGEST_SUFFIX_BYTES)}{_MARK}{suffix}"


def hidden_prefix(name: str) -> str | None:
    """What the name of a file in the folder of an output begins with, if it is one of those that lie there for a while."""
    before, mark, _ = name.rpartition(_MARK)
    return f"{before}{mark}" if mark and name.startswith(".") else None


class HiddenFolders:
    """What builds left beside outputs, as it was at the first look at each folder: one look, however many outputs are in it.

    What a build leaves that is killed after that is found by the next command.
    """

    def __init__(self) -> None:
        self._found: dict[Path, dict[str, list[Path]]] = {}

    def beside(self, output: Path) -> list[Path]:
        """What lies beside an output for a while, in order. Raises OSError."""
        parent = output.parent
        if parent not in self._found:
            found: dict[str, list[Path]] = {}
            with os.scandir(parent) as listing:
                for name in sorted(entry.name for entry in listing if _MARK in entry.name):
                    prefix = hidden_prefix(name)
                    if prefix is not None:
                        found.setdefault(prefix, []).append(parent / name)
            self._found[parent] = found
        return self._found[parent].get(hidden_name(output.name, ""), [])


def free_name(path: Path, content: Path) -> Path:
    """A name beside `path` for what is at `content`: one that is free, or that has the same already."""
    for number in itertools.count(1):
        ending = ".saved" if number == 1 else f".saved-{number}"
        candidate = path.with_name(f"{_shortened(path.name, len(ending))}{ending}")
        if not os.path.lexists(candidate) or identical(candidate, content):
            return candidate
    raise AssertionError("numbers do not end")


def _shortened(name: str, room: int) -> str:
    """A name that leaves `room` bytes to the longest that file systems take; names that differ stay different."""
    data = os.fsencode(name)
    if len(data) + room <= MAX_NAME_BYTES:
        return name
    digest = digest_of(data)[:12]
    return f"{data[: MAX_NAME_BYTES - room - len(digest) - 1].decode(errors='ignore')}~{digest}"

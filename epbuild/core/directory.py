"""A directory tree that is swapped in whole.

It is prepared beside its place, synced, then exchanged with what is there. Files that epbuild did not make, or that were changed since, are
never lost: they are linked into the new tree before the swap. A swap that was cut short is completed or undone by the next one.
`docs/promises.md` has what holds on which system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from epbuild.core.atomic import exchange, make_folders, rename, sync_directory, sync_tree
from epbuild.core.entries import (
    Entries,
    HiddenFolders,
    as_it_was,
    entries,
    free_name,
    hidden_name,
    hidden_prefix,
    identical,
    identity,
    is_special,
    make_writable,
    remove_tree,
)
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId

_OLD = "old-"
"""Marks the tree of the build before, which was renamed away, and still has to be put back or removed."""
_SWAP = "swap-"
"""Marks a tree in exchange, and is followed by the inode of the new one: a tree with another inode is that of the build before."""


class Owned(Protocol):
    """What of the files of a folder is epbuild's, as POSIX paths below it; everything else there is the user's."""

    def wrote(self, folder: Path) -> Collection[str]:
        """Those that epbuild wrote, changed since or not, and whether or not they are there."""
        ...

    def as_written(self, folder: Path) -> Collection[str]:
        """Those that are there as epbuild wrote them."""
        ...


def swap_in(staged: Path, destination: Path, owned: Owned, step: str) -> Mapping[str, str]:
    """Put the tree `staged` (from `prepare`) in the place of `destination`, also if the power fails; `staged` is gone then.

    What is not `owned`, or not as it was written, is kept. Returns what was changed since it was written, by its path, and the path under
    which it is kept. Raises BuildError when something of the user's is where one of the new files belongs, or cannot be kept, and then
    changes nothing.
    """
    if not os.path.lexists(destination):
        _sync(staged, linked=False)
        rename(staged, destination)
        sync_directory(destination.parent)
        return {}
    if destination.is_symlink() or not destination.is_dir():
        message = f"the output folder {destination.name} exists, and is not a folder that epbuild made"
        raise BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's path."))
    kept = _carry_over(staged, destination, owned, step)
    _sync(staged, linked=True)
    # From here on in one folder with its destination: only so may a tree be renamed that its user made read-only.
    new = _beside(destination, f"{_SWAP}{staged.stat().st_ino:x}-{uuid4().hex[:8]}")
    rename(staged, new)
    try:
        as_it_was(destination, new, times=False)
        old = new if exchange(new, destination) else _replaced(new, destination)
    except BaseException:
        if not _is_old(new, destination):
            remove_tree(new)
        raise
    sync_directory(destination.parent)
    _discard(old, destination, owned)
    return kept


@contextlib.contextmanager
def prepare(destination: Path, owned: Owned, step: str, hidden: HiddenFolders | None = None) -> Iterator[Path]:
    """A new empty folder beside `destination`, to fill and then `swap_in`; removed if that does not happen.

    First mends what a run that was killed left beside `destination` (`hidden`: as `mend` has it). Raises EnvironmentFailure when the
    place cannot be written.
    """
    staged = _beside(destination, uuid4().hex[:8])
    try:
        make_folders(destination.parent)
        mend(destination, owned, hidden)
        staged.mkdir()
        yield staged
    except OSError as error:
        why, hint = error.strerror or str(error), "Check the space and the permissions of its folder."
        if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
            # Such as a link that leads to itself, or nowhere.
            why, hint = f"{Path(error.filename).name} is there, and no folder", "Move it away, or change the output's path."
        elif error.errno == errno.ENAMETOOLONG:
            hint = "Shorten the output's path."
        message = f"the output {destination.name} cannot be written: {why}"
        raise EnvironmentFailure(Problem("EPB424", message, StepId(step), hint)) from error
    finally:
        remove_tree(staged)


@contextlib.contextmanager
def workplace(staged: Path) -> Iterator[Path]:
    """A free name beside a folder of `prepare`, for what is made on the way to it; it is removed in the end, if it was made."""
    place = staged.with_name(f"{staged.name}-made")
    try:
        yield place
    finally:
        remove_tree(place)


def unfinished(destinations: Iterable[Path]) -> list[Path]:
    """Those of the output folders beside which a build that was killed left something, or one that goes on has something."""
    wanted = {(destination.parent, hidden_name(destination.name, "")): destination for destination in destinations}
    found: set[Path] = set()
    for parent in {parent for parent, _ in wanted}:
        with contextlib.suppress(OSError):
            hidden = {hidden_prefix(entry.name) for entry in parent.iterdir()}
            found.update(wanted[parent, prefix] for prefix in hidden if prefix is not None and (parent, prefix) in wanted)
    return sorted(found)


def mend(destination: Path, owned: Owned, hidden: HiddenFolders | None = None) -> None:
    """Remove what killed builds left beside `destination`, and put back what they only moved away. Raises OSError.

    Only for the holder of the lease of this output: what a build that goes on has there looks the same. `hidden` is what one command that
    touches many outputs has seen beside them; without it, a new look is taken.
    """
    # A link is none of these: a checkout may bring one along.
    left = [path for path in (hidden or HiddenFolders()).beside(destination) if path.is_dir() and not path.is_symlink()]
    old = [path for path in left if _is_old(path, destination)]
    for path in old:
        if destination.exists():
            _discard(path, destination, owned)
        else:
            rename(path, destination)
            sync_directory(destination.parent)
    for path in left:
        if path not in old:
            # What a user had was only linked here, so nothing of theirs is lost.
            remove_tree(path)


def _beside(destination: Path, suffix: str) -> Path:
    return destination.with_name(hidden_name(destination.name, suffix))


def _is_old(path: Path, destination: Path) -> bool:
    """Whether a hidden folder beside `destination` is the tree of the build before."""
    rest = path.name.removeprefix(hidden_name(destination.name, ""))
    if not rest.startswith(_SWAP):
        return rest.startswith(_OLD)
    try:
        return f"{path.stat().st_ino:x}" != rest.split("-")[1]
    except FileNotFoundError:
        return False


def _replaced(new: Path, destination: Path) -> Path:
    """Put `new` in the place of `destination` where they cannot be exchanged; where the latter is now."""
    old = _beside(destination, f"{_OLD}{uuid4().hex[:8]}")
    rename(destination, old)
    try:
        rename(new, destination)
    except OSError:
        rename(old, destination)
        raise
    return old


def _carry_over(staged: Path, destination: Path, owned: Owned, step: str) -> dict[str, str]:
    """Link what is not epbuild's, or not as it wrote it, into the new tree; what was changed since, and its path there."""
    there = entries(destination)
    if there.mounted:
        message = f"{destination.name}/{there.mounted[0]} is on another file system than the output, and cannot be taken along"
        raise BuildError(Problem("EPB436", message, StepId(step), "Mount it elsewhere, and put a link to it there."))
    wrote, as_written = owned.wrote(destination), owned.as_written(destination)
    kept: dict[str, str] = {}
    # What was changed since comes last: then it is clear which names are free.
    for name in sorted(there.files, key=lambda name: name in wrote):
        if name in as_written:
            continue
        source, target = destination / name, staged / name
        if _in_the_way(target, staged):
            if name not in wrote or is_special(source) or not target.parent.is_dir():
                raise _foreign(destination, name, step)
            if identical(source, target):
                continue
            target = free_name(target, source)
        if name in wrote:
            kept[name] = target.relative_to(staged).as_posix()
        target.parent.mkdir(parents=True, exist_ok=True)
        # What cannot be linked is moved after the swap.
        with contextlib.suppress(OSError, NotImplementedError):
            os.link(source, target, follow_symlinks=False)
    _carry_over_folders(staged, destination, there, wrote, step)
    return kept


def _carry_over_folders(staged: Path, destination: Path, there: Entries, wrote: Collection[str], step: str) -> None:
    """Make the user's folders, those without a file among them, and give all that stay the modes that they had."""
    own = {parent.as_posix() for name in wrote for parent in Path(name).parents}
    for name in there.folders:
        if name not in own:
            if _in_the_way(staged / name, staged) and not (staged / name).is_dir():
                raise _foreign(destination, name, step)
            (staged / name).mkdir(parents=True, exist_ok=True)
    for name in reversed(there.folders):  # what is inside first: then nothing is made in a folder any more
        if (staged / name).is_dir():
            as_it_was(destination / name, staged / name, times=name not in own)


def _foreign(destination: Path, name: str, step: str) -> BuildError:
    message = f"{destination.name}/{name} exists, and epbuild did not make it"
    return BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's names."))


def _in_the_way(target: Path, staged: Path) -> bool:
    """Whether `target` is taken, or one of the folders that it needs below `staged` is taken by a file."""
    folders = (folder for folder in target.parents if folder.is_relative_to(staged))
    return os.path.lexists(target) or any(os.path.lexists(folder) and not folder.is_dir() for folder in folders)


def _sync(staged: Path, *, linked: bool) -> None:
    """Wait until a new tree is on the disk: its folders, and those of its files that are no links to what was there before.

    `linked`: whether there may be such links; else all of its files are new.
    """
    there = entries(staged)
    files = [f"{staged}{os.sep}{name}" for name in there.files]
    if linked:
        files = [path for path in files if _is_new(path)]
    sync_tree([staged, *(staged / name for name in there.folders)], files)


def _is_new(path: str) -> bool:
    status = os.lstat(path)
    return status.st_nlink == 1 and stat.S_ISREG(status.st_mode)


def _discard(old: Path, destination: Path, owned: Owned) -> None:
    """Remove a replaced tree; what is the user's and not in the new one (it came in the instant of the swap) is moved there."""
    as_written, there = owned.as_written(old), entries(old)
    taken_along = {identity(destination / name) for name in entries(destination).files}
    for folder in there.folders:
        make_writable(old / folder)
    make_writable(old)
    for name in there.files:
        source, target = old / name, destination / name
        if name in as_written or identity(source) in taken_along or identical(source, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        rename(source, free_name(target, source) if os.path.lexists(target) else target)
    # Under the name of a tree that is not whole, since one that is only partly removed must never be put back.
    remains = _beside(destination, uuid4().hex[:8])
    rename(old, remains)
    remove_tree(remains)

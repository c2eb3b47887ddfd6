"""Atomic replacement of directory trees.

A new tree is prepared beside its destination, synced, and then exchanged with the old tree. Files that users added or changed are
never lost, because they are linked into the new tree before the swap. The next swap completes or undoes an interrupted swap.
`docs/concepts/files.md` lists the guarantees for each operating system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol
from uuid import uuid4

from epbuild.core.atomic import exchange, make_folders, rename, sync_directory, sync_tree
from epbuild.core.entries import (
    Entries,
    HiddenFolders,
    are_identical,
    choose_free_name,
    copy_folder_metadata,
    get_file_identity,
    is_special,
    list_entries,
    make_hidden_name,
    make_writable,
    remove_tree,
)
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.core.file_use import CLOSE_PROGRAM, describe_use

_OLD = "old-"
"""Marker in the name of an old tree after it was renamed. The tree must be restored or removed."""
_SWAP = "swap-"
"""Marker in the name of a tree during the exchange.

The inode of the new tree follows the marker. A tree that has the marker and another inode is the old tree.
"""


class Owned(Protocol):
    """Lister of the files that epbuild wrote to a folder, as POSIX paths relative to the folder.

    All other files in the folder belong to the user.
    """

    def list_written(self, folder: Path) -> Collection[str]:
        """Return all files that epbuild wrote, including files that were changed or removed later."""
        ...

    def list_unchanged(self, folder: Path) -> Collection[str]:
        """Return the files that have not changed since epbuild wrote them."""
        ...


def swap_in(staged: Path, destination: Path, owned: Owned, step: str) -> Mapping[str, str]:
    """Replace `destination` with the tree `staged` from `prepare`. Keep the user's files and changes.

    The replacement is atomic even if the power fails. Afterwards, `staged` does not exist, except on Windows if it contains old files
    that could not be removed. Files that are not `owned` are kept, and so are files that were changed since epbuild wrote them. Return
    the new paths of such changed files, by old path. Raises BuildError, without changing anything, if a user's file conflicts with a
    new file or cannot be kept.
    """
    if not os.path.lexists(destination):
        _sync(staged, linked=False)
        rename(staged, destination)
        sync_directory(destination.parent)
        return {}
    if destination.is_symlink() or not destination.is_dir():
        message = f"the output folder {destination.name} already exists and was not created by epbuild"
        raise BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's path."))
    kept = _carry_over(staged, destination, owned, step)
    _sync(staged, linked=True)
    # The tree is moved beside its destination, because a read-only tree can only be renamed within its parent folder.
    new = _make_path_beside(destination, f"{_SWAP}{staged.stat().st_ino:x}-{uuid4().hex[:8]}")
    rename(staged, new)
    try:
        copy_folder_metadata(destination, new, times=False)
        old = new if exchange(new, destination) else _replace(new, destination)
    except BaseException:
        if not _is_old(new, destination):
            remove_tree(new)
        raise
    sync_directory(destination.parent)
    _discard(old, staged, destination, owned)
    return kept


@contextlib.contextmanager
def prepare(
    destination: Path, owned: Owned, step: str, hidden: HiddenFolders | None = None, *, task: Literal["write", "remove"] = "write"
) -> Iterator[Path]:
    """Yield a new empty folder beside `destination`. The caller fills the folder and passes it to `swap_in`.

    A folder that was not passed to `swap_in` is removed at the end of the block. Interrupted swaps of `destination` are recovered
    first. `hidden` is passed to `recover_swaps`. Raises EnvironmentFailure, which names the `task`, if the destination is not writable.
    """
    staged = _make_path_beside(destination, uuid4().hex[:8])
    try:
        make_folders(destination.parent)
        recover_swaps(destination, owned, hidden)
        staged.mkdir()
        yield staged
    except OSError as error:
        why, hint = error.strerror or str(error), "Check the free space and the permissions of its folder."
        if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
            # For example, a link to itself or a dangling link.
            why, hint = f"{Path(error.filename).name} exists and is not a folder", "Move it away, or change the output's path."
        elif error.errno == errno.ENAMETOOLONG:
            hint = "Shorten the output's path."
        elif used := describe_use(error):
            why, hint = used, CLOSE_PROGRAM
        message = f"cannot {task} the output {destination.name}: {why}"
        raise EnvironmentFailure(Problem("EPB424", message, StepId(step), hint)) from error
    finally:
        remove_tree(staged)


@contextlib.contextmanager
def scratch_path(staged: Path) -> Iterator[Path]:
    """Yield an unused path beside a folder from `prepare`, for intermediate files. The path is removed at the end of the block."""
    place = staged.with_name(f"{staged.name}-made")
    try:
        yield place
    finally:
        remove_tree(place)


def find_interrupted_swaps(destinations: Iterable[Path]) -> list[Path]:
    """Return the output folders that have temporary entries beside them, left by killed or running builds or by programs on Windows."""
    hidden, found = HiddenFolders(), []
    for destination in destinations:
        with contextlib.suppress(OSError):
            if hidden.list_beside(destination):
                found.append(destination)
    return sorted(found)


def recover_swaps(destination: Path, owned: Owned, hidden: HiddenFolders | None = None) -> None:
    """Remove temporary entries of killed builds beside `destination`. If `destination` is missing, restore the old tree.

    Raises OSError. The caller must hold the lease of this output, because a running build has similar entries. `hidden` avoids
    repeated directory listings for commands with many outputs.
    """
    # Links are excluded: a checkout may contain one.
    left = [path for path in (hidden or HiddenFolders()).list_beside(destination) if path.is_dir() and not path.is_symlink()]
    old = [path for path in left if _is_old(path, destination)]
    for path in old:
        if destination.exists():
            _discard(path, _make_path_beside(destination, uuid4().hex[:8]), destination, owned)
        else:
            rename(path, destination)
            sync_directory(destination.parent)
    for path in left:
        if path not in old:
            # The user's files are only links here, so no file is lost.
            remove_tree(path)


def _make_path_beside(destination: Path, suffix: str) -> Path:
    return destination.with_name(make_hidden_name(destination.name, suffix))


def _is_old(path: Path, destination: Path) -> bool:
    """Return whether a hidden folder beside `destination` is an old tree."""
    rest = path.name.removeprefix(make_hidden_name(destination.name, ""))
    if not rest.startswith(_SWAP):
        return rest.startswith(_OLD)
    try:
        return f"{path.stat().st_ino:x}" != rest.split("-")[1]
    except FileNotFoundError:
        return False


def _replace(new: Path, destination: Path) -> Path:
    """Replace `destination` with `new` by two renames. Return the new path of the old tree."""
    old = _make_path_beside(destination, f"{_OLD}{uuid4().hex[:8]}")
    rename(destination, old)
    try:
        rename(new, destination)
    except OSError:
        rename(old, destination)
        raise
    return old


def _carry_over(staged: Path, destination: Path, owned: Owned, step: str) -> dict[str, str]:
    """Link the user's files, and changed files that epbuild wrote, into the new tree.

    Return the new paths of changed files, by old path.
    """
    existing = list_entries(destination)
    if existing.mounted:
        mounted = f"{destination.name}/{existing.mounted[0]}"
        message = f"{mounted} is on a different file system than the output, so it cannot be moved with the output"
        raise BuildError(Problem("EPB436", message, StepId(step), "Mount it elsewhere, and create a link in its place."))
    wrote, as_written = owned.list_written(destination), owned.list_unchanged(destination)
    kept: dict[str, str] = {}
    # Changed files are last, because they may be renamed and must not use the names of other files.
    for name in sorted(existing.files, key=lambda name: name in wrote):
        if name in as_written:
            continue
        source, target = destination / name, staged / name
        if _is_in_the_way(target, staged):
            if name not in wrote or is_special(source) or not target.parent.is_dir():
                raise _make_foreign_error(destination, name, step)
            if are_identical(source, target):
                continue
            target = choose_free_name(target, source)
        if name in wrote:
            kept[name] = target.relative_to(staged).as_posix()
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file that cannot be linked is moved after the swap.
        with contextlib.suppress(OSError, NotImplementedError):
            os.link(source, target, follow_symlinks=False)
    _carry_over_folders(staged, destination, existing, wrote, step)
    return kept


def _carry_over_folders(staged: Path, destination: Path, there: Entries, wrote: Collection[str], step: str) -> None:
    """Create the user's folders in the new tree, including empty folders, and copy the modes of all folders that are kept."""
    own = {parent.as_posix() for name in wrote for parent in Path(name).parents}
    for name in there.folders:
        if name not in own:
            if _is_in_the_way(staged / name, staged) and not (staged / name).is_dir():
                raise _make_foreign_error(destination, name, step)
            (staged / name).mkdir(parents=True, exist_ok=True)
    for name in reversed(there.folders):  # inner folders first, because changes in a folder change its times
        if (staged / name).is_dir():
            copy_folder_metadata(destination / name, staged / name, times=name not in own)


def _make_foreign_error(destination: Path, name: str, step: str) -> BuildError:
    message = f"{destination.name}/{name} already exists and was not created by epbuild"
    return BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's names."))


def _is_in_the_way(target: Path, staged: Path) -> bool:
    """Return whether `target` exists, or a file blocks one of its parent folders below `staged`."""
    folders = (folder for folder in target.parents if folder.is_relative_to(staged))
    return os.path.lexists(target) or any(os.path.lexists(folder) and not folder.is_dir() for folder in folders)


def _sync(staged: Path, *, linked: bool) -> None:
    """Sync the folders and new files of a tree to disk.

    If `linked` is True, some files may be links to files of the old tree. These links need no sync.
    """
    tree = list_entries(staged)
    files = [f"{staged}{os.sep}{name}" for name in tree.files]
    if linked:
        files = [path for path in files if _is_new(path)]
    sync_tree([staged, *(staged / name for name in tree.folders)], files)


def _is_new(path: str) -> bool:
    status = os.lstat(path)
    return status.st_nlink == 1 and stat.S_ISREG(status.st_mode)


def _discard(old: Path, remains: Path, destination: Path, owned: Owned) -> None:
    """Rename the old tree to `remains` and remove it. Files that the user created during the swap are moved to the new tree."""
    as_written, old_entries = owned.list_unchanged(old), list_entries(old)
    carried_over = {get_file_identity(destination / name) for name in list_entries(destination).files}
    for folder in old_entries.folders:
        make_writable(old / folder)
    make_writable(old)
    for name in old_entries.files:
        source, target = old / name, destination / name
        if name in as_written or get_file_identity(source) in carried_over or are_identical(source, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        rename(source, choose_free_name(target, source) if os.path.lexists(target) else target)
    # The tree is renamed first, because a partly removed tree must never be restored.
    rename(old, remains)
    remove_tree(remains)

"""New files of a folder that appear all at once."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

from epbuild.core.atomic import rename, sync_file
from epbuild.core.clone import copy_file
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.safepath import real_path


@contextlib.contextmanager
def drafts(folder: Path) -> Iterator[Path]:
    """A new empty folder in `folder`, to fill and then `publish`; removed at the end, and `folder` too if it was made for nothing."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    drafted = folder / f".epbuild-{uuid4().hex[:8]}"
    drafted.mkdir()
    try:
        yield drafted
    finally:
        shutil.rmtree(drafted, ignore_errors=True)
        for place in made:
            with contextlib.suppress(OSError):  # it is not empty: that is what it was made for
                place.rmdir()


def stage(file: Path, draft: Path, *, link: bool) -> None:
    """Puts `file` into the drafts: as a hard link where `link` allows it, since it only gets another name then; else as a copy."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    if link:
        with contextlib.suppress(OSError):
            os.link(real_path(file), draft)
            return
    copy_file(file, draft)


def publish(drafted: Path, folder: Path, names: Sequence[str]) -> None:
    """Renames drafts into `folder`, in the order of `names`, so that each comes after what it refers to; all of them or none.

    Raises ChangeRefused (EPB624) where something is in the way: no file is overwritten.
    """
    published: list[Path] = []
    try:
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _claim(target)
            published.append(target)
            _replace(drafted / name, target)
    except BaseException:
        for target in reversed(published):
            target.unlink(missing_ok=True)
        raise


def overwrite(drafted: Path, folder: Path, name: str) -> None:
    """Renames a draft over the file of that name in `folder`; a reader sees the old file or the new one, whole."""
    shutil.copymode(folder / name, drafted / name)
    _replace(drafted / name, folder / name)


def _replace(draft: Path, target: Path) -> None:
    # What the new file replaces may be removed at once, so it must outlive a loss of power.
    with contextlib.suppress(OSError):
        sync_file(draft)
    rename(draft, target)


def _claim(target: Path) -> None:
    try:
        target.open("xb").close()
    except FileExistsError as error:
        raise in_the_way(target) from error


def in_the_way(target: Path) -> ChangeRefused:
    """What is raised where a new file's place is taken."""
    hint = "Remove it, or choose another name."
    return ChangeRefused(Problem("EPB624", f"{target} exists, and is not overwritten", None, hint))

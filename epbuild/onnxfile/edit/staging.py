"""New files that appear in a folder all at once."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

from epbuild.core.atomic import rename, sync_file
from epbuild.core.clone import copy_file
from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.safepath import find_unportable_part, resolve_links
from epbuild.core.shown import format_path


@contextlib.contextmanager
def drafts(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Create a draft folder in `folder`, for files that `publish` or `overwrite` then moves into `folder`.

    The draft folder is removed at the end, with its content. `folder` is also removed if it was created here and is still empty.
    Raises ChangeRefused (EPB624) if one of the `names` of the new files is invalid on Windows.
    """
    _check_names(names)
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    draft_folder = folder / f".epbuild-{uuid4().hex[:8]}"
    draft_folder.mkdir()
    try:
        yield draft_folder
    finally:
        shutil.rmtree(draft_folder, ignore_errors=True)
        for place in created:
            with contextlib.suppress(OSError):  # The folder is not empty.
                place.rmdir()


def split_destination(destination: Path | None, default: Path) -> tuple[Path, str | None]:
    """Return the folder for new files, and the name of the file if `destination` is a single `.onnx` file instead of a folder."""
    if destination is None or destination.suffix != ".onnx" or destination.is_dir():
        return destination or default, None
    return destination.parent, destination.name


def stage(file: Path, draft: Path, *, link: bool) -> None:
    """Copy `file` to a draft. With `link`, use a hard link if the file system supports it."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    if link:
        with contextlib.suppress(OSError):
            os.link(resolve_links(file), draft)
            return
    copy_file(file, draft)


def publish(draft_folder: Path, folder: Path, names: Sequence[str]) -> None:
    """Move drafts into `folder`, all or none. In `names`, a file must come after the files that it refers to.

    Raises ChangeRefused (EPB624) if a name is invalid on Windows, or if a file with one of these names exists. Existing files are not
    overwritten.
    """
    _check_names(names)
    published: list[Path] = []
    try:
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _claim(target)
            published.append(target)
            _replace(draft_folder / name, target)
    except BaseException:
        for target in reversed(published):
            target.unlink(missing_ok=True)
        raise


def overwrite(draft_folder: Path, folder: Path, name: str) -> None:
    """Rename a draft over the file with the same name in `folder`. Readers see a complete file, either old or new."""
    shutil.copymode(folder / name, draft_folder / name)
    _replace(draft_folder / name, folder / name)


def make_exists_error(target: Path) -> ChangeRefused:
    """Return the error for a new file whose name already exists."""
    hint = "Remove it, or choose another name."
    return ChangeRefused(Problem("EPB624", f"{format_path(target)} already exists and is not overwritten", None, hint))


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if (part := find_unportable_part(posixpath.normpath(name))) is not None:
            hint = "Choose another name: models must work on every platform."
            raise ChangeRefused(Problem("EPB624", f"'{part}' is not a valid name on Windows", None, hint))


def _claim(target: Path) -> None:
    try:
        target.open("xb").close()
    except FileExistsError as error:
        raise make_exists_error(target) from error


def _replace(draft: Path, target: Path) -> None:
    # The caller may remove the replaced file at once, so the new file must survive a power loss.
    with contextlib.suppress(OSError):
        sync_file(draft)
    rename(draft, target)

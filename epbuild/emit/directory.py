"""A directory tree that is swapped in whole: prepared beside its place, then renamed. No reader sees a mix of two builds.

Files that epbuild did not make are never overwritten and never lost: they are linked into the new tree before the swap. A swap that was
cut short is completed or undone by the next one.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from epbuild.errors import BuildError, EnvironmentFailure, Problem, StepId

Ours = Callable[[Path], Collection[str]]
"""Which files of a folder epbuild made, as POSIX paths below it; everything else there is the user's."""

_MARK = ".epbuild-"
_OLD = "old"


def swap_in(staged: Path, destination: Path, ours: Ours, step: str) -> None:
    """Put the tree `staged` (from `prepare`) in the place of `destination`.

    What is not `ours` there is kept. Raises BuildError when a file of the user's stands where one of the new files belongs, and then
    changes nothing.
    """
    if destination.is_dir() and not destination.is_symlink():
        _carry_over(staged, destination, ours, step)
        old = _beside(destination, f"{_OLD}-{uuid4().hex[:8]}")
        destination.rename(old)
        try:
            staged.rename(destination)
        except OSError:
            old.rename(destination)
            raise
        _discard(old, destination, ours)
    elif destination.exists() or destination.is_symlink():
        message = f"the output folder {destination.name} exists, and is not a folder that epbuild made"
        raise BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's path."))
    else:
        staged.rename(destination)


@contextlib.contextmanager
def prepare(destination: Path, ours: Ours, step: str) -> Iterator[Path]:
    """A new empty folder beside `destination`, to fill and then `swap_in`; removed if that does not happen.

    First mends what a run that was killed left beside `destination`. Raises EnvironmentFailure when the place cannot be written.
    """
    staged = _beside(destination, uuid4().hex[:8])
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        mend(destination, ours)
        staged.mkdir()
        yield staged
    except OSError as error:
        message = f"the output {destination.name} cannot be written: {error.strerror or error}"
        raise EnvironmentFailure(
            Problem("EPB424", message, StepId(step), "Check the space and the permissions of its folder.")
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _beside(destination: Path, suffix: str) -> Path:
    return destination.with_name(f".{destination.name}{_MARK}{suffix}")


def unfinished(destinations: Iterable[Path]) -> list[Path]:
    """Those of the output folders beside which a build that was killed left something, or one that goes on has something."""
    wanted = set(destinations)
    found: set[Path] = set()
    for parent in {destination.parent for destination in wanted}:
        with contextlib.suppress(OSError):
            hidden = [entry.name[1:] for entry in parent.iterdir() if entry.name.startswith(".") and _MARK in entry.name]
            found.update(parent / name.rpartition(_MARK)[0] for name in hidden)
    return sorted(found & wanted)


def mend(destination: Path, ours: Ours) -> None:
    """Remove what killed builds left beside `destination`, and put back what they only moved away. Raises OSError.

    Only for whoever holds the lease of this output: what a build that goes on has there looks the same.
    """
    prefix = f".{destination.name}{_MARK}"
    left = sorted(path for path in destination.parent.iterdir() if path.name.startswith(prefix) and path.is_dir())
    for path in left:
        if path.name.startswith(f"{prefix}{_OLD}-"):
            if destination.exists():
                _discard(path, destination, ours)
            else:
                path.rename(destination)
    for path in left:
        if not path.name.startswith(f"{prefix}{_OLD}-"):
            # What a user had was only linked here, so nothing of theirs is lost.
            shutil.rmtree(path, ignore_errors=True)


def _carry_over(staged: Path, destination: Path, ours: Ours, step: str) -> None:
    """Link the user's own files into the new tree."""
    made = ours(destination)
    for relative in _files(destination):
        if relative in made:
            continue
        target = staged / relative
        if _in_the_way(target, staged):
            message = f"{destination.name}/{relative} exists, and epbuild did not make it"
            raise BuildError(Problem("EPB423", message, StepId(step), "Move it away, or change the output's names."))
        target.parent.mkdir(parents=True, exist_ok=True)
        source = destination / relative
        try:
            os.link(source, target, follow_symlinks=False)
        except (OSError, NotImplementedError):
            shutil.copy2(source, target, follow_symlinks=False)


def _in_the_way(target: Path, staged: Path) -> bool:
    """Whether `target` is taken, or one of the folders that it needs below `staged` is taken by a file."""
    folders = (folder for folder in target.parents if folder.is_relative_to(staged))
    return os.path.lexists(target) or any(os.path.lexists(folder) and not folder.is_dir() for folder in folders)


def _discard(old: Path, destination: Path, ours: Ours) -> None:
    """Remove a replaced tree; a file of the user's that is not in the new one (it came in the instant of the swap) is moved there."""
    made = ours(old)
    for relative in _files(old):
        source, target = old / relative, destination / relative
        kept = relative in made or (target.exists() and filecmp.cmp(source, target, shallow=True)) or target.is_symlink()
        if not kept:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target if not target.exists() else target.with_name(f"{target.name}.saved"))
    # Under the name of a tree that is not whole, since one that is only partly removed must never be put back.
    remains = _beside(destination, uuid4().hex[:8])
    old.rename(remains)
    shutil.rmtree(remains, ignore_errors=True)


def _files(folder: Path) -> list[str]:
    """Every file and link below a folder, as sorted POSIX paths."""
    found = []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        found += [(Path(root) / name).relative_to(folder).as_posix() for name in (*names, *links)]
    return sorted(found)

"""Watch of the files that a build depends on.

The watch polls the size, time and inode of each file, because inotify and similar systems have three limits. They miss
writes of other machines on network file systems. Their number of watches is limited. They watch folders, while a build
depends on single files anywhere. Polling 3,000 files takes 15 ms. After a slow poll, the next poll waits longer, so that
polling takes at most 5 % of a CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from epbuild.commands.plan import survey
from epbuild.core.errors import EpbuildError, Position
from epbuild.core.shown import format_path
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.session.lock import get_lock_path
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.survey.snapshot import get_snapshot_path, read, read_unchanged

FileState = tuple[int, int, int] | None
"""Size, mtime in nanoseconds and inode of a file, or None if it does not exist."""

_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 0.4
"""Seconds without changes before a build begins: editors write files in several steps, and exporters write several files."""
_SHARE = 20
"""Minimum ratio of the pause between polls to the duration of a poll."""


@dataclass
class SourceWatch:
    """Files that a build depends on, with their states at the last build."""

    request: Request
    sleep: Callable[[float], object] = time.sleep
    files: dict[str, FileState] = field(default_factory=dict)
    """File states by absolute path."""
    _before: Mapping[str, FileState] = field(default_factory=dict)
    _has_snapshot: bool = False

    def begin(self) -> None:
        """Record the states of the files before a build. They reveal changes during the build if it writes no snapshot."""
        recipe = str(self.request.recipe.absolute())
        self.files = {path: get_watched_state(path) for path in (*self.files, recipe)}
        self._before = {place: get_watched_state(place) for place in self._list_snapshots()}

    def end(self, error: EpbuildError | None = None) -> None:
        """Record the files that a build read. If the build wrote no snapshot, record the files that the recipe names instead."""
        for place in self._list_snapshots():
            if error is None and get_watched_state(place) not in (None, self._before.get(place)):
                with suppress(OSError, ValueError, EOFError, TypeError):  # The snapshot may be damaged.
                    self.files = _read_states(place)
                    self._has_snapshot = True
                    return
        self._has_snapshot = False
        sources, outputs = list(_find_sources(self.request, error)), list(_find_main_outputs(self.request))
        before = {
            path: state for path, state in self.files.items() if path not in outputs
        }  # The build itself changes its outputs.
        self.files = {path: get_watched_state(path) for path in (*before, *sources, *outputs)} | before

    def wait(self) -> tuple[str, ...]:
        """Wait until files have changed and then stopped changing. Return the names of the changed files."""
        while True:
            begin = time.monotonic()
            changed = self._find_changes()
            took = time.monotonic() - begin
            if not changed:
                self.sleep(max(_PAUSE_SECONDS, _SHARE * took))
                continue
            before = None
            while changed and (now := {path: get_watched_state(path) for path in self.files}) != before:
                before = now
                self.sleep(max(_SETTLE_SECONDS, took))
            changed = self._find_changes()
            if changed and self._has_unchanged_contents():
                self.files = {path: get_watched_state(path) for path in self.files}
            elif changed:
                return tuple(format_path(Path(path)) for path in changed)

    def _has_unchanged_contents(self) -> bool:
        """Return whether all contents still match the last build's snapshot. If so, files were touched but not changed."""
        if not self._has_snapshot:
            return False
        return read_unchanged(str(self.request.recipe), self.request.settings, self.request.selection) is not None

    def _find_changes(self) -> list[str]:
        return [path for path, state in self.files.items() if get_watched_state(path) != state]

    def _list_snapshots(self) -> Iterator[str]:
        recipe, settings = str(self.request.recipe), self.request.settings
        for selection in {self.request.selection: None, (): None}:
            place = get_snapshot_path(recipe, settings, selection)
            if place is not None and self.request.emits_all:
                yield place


def get_watched_state(path: str) -> FileState:
    """Return the size, time and inode of a file, or None if it does not exist.

    The ctime is ignored, because it changes when another build links the file.
    """
    try:
        seen = os.stat(path)  # noqa: PTH116 - faster; this runs thousands of times, several times a second
    except (OSError, ValueError):
        return None
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _read_states(place: str) -> dict[str, FileState]:
    """Return the states of files in a snapshot. Files that must not appear have the state None."""
    snapshot = read(place)
    files = {path: (size, mtime_ns, inode) for path, size, mtime_ns, _, inode in snapshot.files}
    return {**files, **dict.fromkeys(snapshot.absent)}


def _find_sources(request: Request, error: EpbuildError | None) -> Iterator[str]:
    """Yield the files that the readable parts of a recipe name, and the files with errors."""
    for problem in error.problems if error is not None else ():
        if isinstance(problem.where, Position):
            yield str(Path(problem.where.file).absolute())
        elif isinstance(problem.where, Path):
            yield str(problem.where.absolute())
    yield str(get_lock_path(request.recipe).absolute())
    try:
        recipe = load(request.recipe, settings=request.settings)
    except BrokenRecipe as broken:
        recipe = broken.rest
    except EpbuildError:
        return
    folder = recipe.directory.absolute()
    yield from (str(path.absolute()) for path in (*recipe.names, *recipe.files, *recipe.folders))
    yield from (str(folder / catalog.name) for catalog in recipe.catalogs)
    yield from (str(folder / model.path) for model in recipe.models.values() if model.path)
    try:
        _, plan = read_plan(request)
    except EpbuildError:
        return
    yield from (str(path.absolute()) for action in plan.actions.values() for path in action.files)
    yield from (str(path.absolute()) for path in (*plan.folders, *plan.reports))


def _find_main_outputs(request: Request) -> Iterator[str]:
    """Yield the main file of each output, if the recipe can be planned."""
    try:
        found = survey(replace(request, remote=None))
    except EpbuildError:
        return
    yield from (str(Path(path).absolute()) for status in found.steps() for path in status.outputs)

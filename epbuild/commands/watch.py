"""Watched sources: the files that a build looked at, compared again and again.

The files are looked at by their size, time and inode, a few times a second, rather than waited for: inotify and its relatives report
nothing of what another machine writes to a network file system, run out of watches, and watch folders, while a build depends on files
that lie anywhere. A look at 3,000 files takes 15 ms. A slow one makes the next one come later: that takes a twentieth of a CPU at most.
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
from epbuild.core.shown import shown_path
from epbuild.session.lock import lock_path
from epbuild.session.planning import read_plan, read_recipe
from epbuild.session.request import Request
from epbuild.survey.snapshot import place_of, read, read_unchanged

FileState = tuple[int, int, int] | None
"""The size, the mtime in nanoseconds and the inode of a file; None where there is none."""

_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 0.4
"""How long no file may change before a build begins: an editor writes a file in several steps, an exporter several files."""
_SHARE = 20
"""How much longer a pause is than a look, at least."""


@dataclass
class SourceWatch:
    """What a build depends on, as the last build saw it."""

    request: Request
    sleep: Callable[[float], object] = time.sleep
    files: dict[str, FileState] = field(default_factory=dict)
    """The files by their absolute paths."""
    _before: Mapping[str, int | None] = field(default_factory=dict)
    _has_snapshot: bool = False

    def begin(self) -> None:
        """Note what is there before a build: what changes while it goes on is a change, where nothing better is known."""
        recipe = str(self.request.recipe.absolute())
        self.files = {path: state_of(path) for path in (*self.files, recipe)}
        self._before = {place: _written(place) for place in self._snapshots()}

    def end(self, error: EpbuildError | None = None) -> None:
        """Note what a build that is over, or could not be started for an `error`, has looked at."""
        for place in self._snapshots():
            if error is None and _written(place) not in (None, self._before.get(place)):
                with suppress(OSError, ValueError, EOFError, TypeError):  # it was damaged since
                    self.files = _seen(place)
                    self._has_snapshot = True
                    return
        self._has_snapshot = False
        sources, outputs = list(_sources(self.request, error)), list(_main_outputs(self.request))
        before = {path: state for path, state in self.files.items() if path not in outputs}  # the build wrote those
        self.files = {path: state_of(path) for path in (*before, *sources, *outputs)} | before

    def wait(self) -> tuple[str, ...]:
        """Wait until files have changed and changed no more; returns their names."""
        while True:
            begin = time.monotonic()
            changed = self._changed()
            took = time.monotonic() - begin
            if not changed:
                self.sleep(max(_PAUSE_SECONDS, _SHARE * took))
                continue
            before = None
            while changed and (now := {path: state_of(path) for path in self.files}) != before:
                before = now
                self.sleep(max(_SETTLE_SECONDS, took))
            changed = self._changed()
            if changed and self._is_as_it_was():
                self.files = {path: state_of(path) for path in self.files}
            elif changed:
                return tuple(shown_path(Path(path)) for path in changed)

    def _is_as_it_was(self) -> bool:
        """Whether files were only touched, by the snapshot that the last build left: it knows what is in them."""
        if not self._has_snapshot:
            return False
        return read_unchanged(str(self.request.recipe), self.request.settings, self.request.selection) is not None

    def _changed(self) -> list[str]:
        return [path for path, state in self.files.items() if state_of(path) != state]

    def _snapshots(self) -> Iterator[str]:
        recipe, settings = str(self.request.recipe), self.request.settings
        for selection in {self.request.selection: None, (): None}:
            place = place_of(recipe, settings, selection)
            if place is not None and self.request.emits_all:
                yield place


def state_of(path: str) -> FileState:
    """What shows that a file has changed. Not its ctime: another build that links it changes that."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - thousands of them, several times a second
    except (OSError, ValueError):
        return None
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _written(place: str) -> int | None:
    try:
        return os.stat(place).st_mtime_ns  # noqa: PTH116
    except OSError:
        return None


def _seen(place: str) -> dict[str, FileState]:
    """The files of a snapshot, as the build that took it saw them, and those that must not appear."""
    snapshot = read(place)
    files = {path: (size, mtime_ns, inode) for path, size, mtime_ns, _, inode in snapshot.files}
    return {**files, **dict.fromkeys(snapshot.absent)}


def _sources(request: Request, error: EpbuildError | None) -> Iterator[str]:
    """The files that a recipe names, as far as it can be read, and those in which there are mistakes."""
    for problem in error.problems if error is not None else ():
        if isinstance(problem.where, Position):
            yield str(Path(problem.where.file).absolute())
        elif isinstance(problem.where, Path):
            yield str(problem.where.absolute())
    yield str(lock_path(request.recipe).absolute())
    try:
        recipe = read_recipe(request, None)
    except EpbuildError:
        return
    folder = recipe.directory.absolute()
    yield from (str(folder / path) for path in (*recipe.names, *recipe.files))
    yield from (str(folder / catalog.name) for catalog in recipe.catalogs)
    yield from (str(folder / model.path) for model in recipe.models.values())
    try:
        _, plan = read_plan(request)
    except EpbuildError:
        return
    yield from (str(folder / path) for action in plan.actions.values() for path in action.files)


def _main_outputs(request: Request) -> Iterator[str]:
    """The main files of the outputs that a recipe asks for, as far as it can be planned."""
    try:
        found = survey(replace(request, remote=None))
    except EpbuildError:
        return
    yield from (str(Path(path).absolute()) for status in found.steps() for path in status.outputs)

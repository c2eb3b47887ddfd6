"""Executions of a build's actions, whose inputs are watched for changes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from epbuild.actions.action_type import KeyInputs
from epbuild.actions.types import action_type
from epbuild.cache.workspace import log_file
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.core.safepath import is_regular
from epbuild.core.shown import shown_path
from epbuild.engine.events import Progress
from epbuild.engine.loop import Idle
from epbuild.plan.key import differences
from epbuild.plan.made import Made
from epbuild.plan.steps import Action
from epbuild.survey.status import Surveyor
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution, Workplace

_MOST_STORING = 4  # when more than these wait for the disk, further compiles would only pile up


class KeyedAction(Struct, frozen=True):
    """An action with all its files, what it is made of, and the document of its key."""

    action: Action
    needed: Sequence[Made]
    document: Mapping[str, Any]


@dataclass(frozen=True)
class WatchedExecution(Execution):
    """One run of an action, whose result counts only if none of its inputs changed meanwhile."""

    subject: KeyedAction
    surveyor: Surveyor
    idle: Idle
    written: Mapping[Path, tuple[int, ...]]
    """What changes when users or other processes write to a file of theirs; blobs are what they are named by, whatever their times."""

    def digests(self, files: Iterable[Path]) -> Mapping[Path, str]:
        return digests_of(self.surveyor, self.subject, files)

    def recheck(self) -> None:
        """Raises BuildError if an input of the action is no longer what its key holds, or may have been another for a while."""
        action, needed, document = self.subject.action, self.subject.needed, self.subject.document
        kind, environment = action_type(action), self.environment.now()
        digests = self.surveyor.digests.of_many(action.files)
        changes = differences(document, kind.key_document(action, KeyInputs(digests, kind.identity(action, environment), needed)))
        # What was another for a while and is now what it was may have been read in between.
        touched = [str(path) for path, before in self.written.items() if last_written(path) != before]
        touched += environment.touched_since(self.environment)
        if not changes and touched:
            changes = [f"{shown_path(Path(touched[0]))} was touched, and may have been another for a while"]
        if changes:
            message = f"an input changed while it was {kind.done}: {'; '.join(changes)}"
            raise BuildError(Problem("EPB415", message, StepId(action.id), "Nothing was kept; run the build again."))

    def compiled(self) -> None:
        """While this one is checked and stored, another may run; where the next process is its own, it keeps its place."""
        action = self.subject.action
        if not action_type(action).keeps_its_place(action) and len(self.idle) < _MOST_STORING:
            self.idle.add(action.id)

    def relinking(self, paths: Sequence[Path]) -> AbstractContextManager[None]:
        return self.surveyor.digests.relinking(paths)


class CurrentToolchains(Protocol):
    """The toolchains of a build as they are now."""

    def current(self, action: Action) -> Environment:
        """That of an action. Raises EpbuildError."""


class Executions:
    """Opens executions for the actions of one build."""

    def __init__(
        self, surveyor: Surveyor, toolchains: CurrentToolchains, progress: Progress, cancelled: threading.Event, idle: Idle
    ) -> None:
        self._surveyor = surveyor
        self._toolchains = toolchains
        self._progress = progress
        self._cancelled = cancelled
        self._idle = idle

    def workplace(self, subject: KeyedAction) -> Workplace:
        """Where executions of an action are opened: its own, without a name, and further ones with names below its own."""
        return _Workplace(self, subject)

    @contextmanager
    def open(self, subject: KeyedAction, name: str) -> Iterator[Execution]:
        """One run of an action while its files are what its document holds; the log is that of `name`."""
        action, workspace, store = subject.action, self._surveyor.workspace, self._surveyor.store
        environment = self._held_still(action, subject.document)
        own = set(action.files) - {store.place(digest) for made in subject.needed for digest in made.result.digests.values()}
        log = log_file(workspace.directory, name, self._surveyor.memory.configuration.recipe)
        log.parent.mkdir(exist_ok=True)
        if not is_regular(log):  # a checkout may bring a link or a pipe along
            log.unlink(missing_ok=True)
        with workspace.staging(name.replace("/", "-").replace(":", "-")) as staging:
            yield WatchedExecution(
                environment,
                staging,
                log,
                shown_path(log),
                store,
                self._progress,
                self._cancelled,
                subject,
                self._surveyor,
                self._idle,
                {path: last_written(path) for path in action.files if path in own},
            )

    def _held_still(self, action: Action, document: Mapping[str, Any]) -> Environment:
        """The action's toolchain as it is now; raises BuildError unless it is still what `document` has."""
        kind, environment = action_type(action), self._toolchains.current(action)
        changes = differences({"toolchain": document["toolchain"]}, {"toolchain": kind.identity(action, environment)})
        if changes:
            message = f"the toolchain '{environment.name}' changed before it was {kind.done}: {'; '.join(changes)}"
            raise BuildError(Problem("EPB415", message, StepId(action.id), "Nothing was kept; run the build again."))
        return environment


class _Workplace(Struct, frozen=True):
    executions: Executions
    subject: KeyedAction

    def open(self, name: str) -> AbstractContextManager[Execution]:
        return self.executions.open(self.subject, f"{self.subject.action.id}/{name}".removesuffix("/"))


def digests_of(surveyor: Surveyor, subject: KeyedAction, files: Iterable[Path]) -> Mapping[Path, str]:
    """The SHA-256 of files of an action, and of the artifacts that it is made of: blobs, whose names these are."""
    known = {surveyor.store.place(digest): digest for made in subject.needed for digest in made.result.digests.values()}
    return {**surveyor.digests.of_many(file for file in files if file not in known), **known}


def last_written(path: Path) -> tuple[int, ...]:
    """What changes when a process writes to a file, or puts another in its place; not when a link is made to it. Empty if it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino

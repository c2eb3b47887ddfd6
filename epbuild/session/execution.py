"""Executions of a build's actions, on this machine or on another one."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from epbuild.actions.types import get_action_type, read_result
from epbuild.cache.digests import Digests, stat_writes
from epbuild.cache.workspace import get_log_path
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.core.safepath import is_regular
from epbuild.core.shown import format_path
from epbuild.engine.events import Outcome, Progress
from epbuild.engine.loop import IdleActions, Slot
from epbuild.engine.scheduler import Runnable
from epbuild.plan.key import describe_differences
from epbuild.plan.made import KeyedAction, find_blobs
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.session.provisioning import Provisioning
from epbuild.survey.status import Surveyor
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.execution import Execution

if TYPE_CHECKING:
    from epbuild.session.remote_build import RemoteMachines


@dataclass(frozen=True, kw_only=True)
class WatchedExecution(Execution):
    """One run of an action. The result is discarded if an input of the action has changed during the run."""

    subject: KeyedAction
    remembered: Digests
    stats_before: Mapping[Path, tuple[int, ...]]
    """Stats of the action's input files before the run, from `stat_writes`. Blobs are excluded, because their names are digests."""

    def recheck(self) -> None:
        """Raise BuildError if an input of the action differs from the key document, or may have differed temporarily."""
        action, document = self.subject.action, self.subject.document
        kind, environment = get_action_type(action), self.environment.refresh()
        # The digests of blobs that this build wrote are known. Older blobs may have been damaged.
        known = {path: digest for path, digest in self.known_digests.items() if self.store.has_written(digest)}
        digests = {**self.remembered.of_many(path for path in action.files if path not in known), **known}
        changes = describe_differences(document, kind.key_document(action, digests, kind.identity(action, environment)))
        # A file that changed and changed back may have been read in between.
        touched = [str(path) for path, before in self.stats_before.items() if stat_writes(path) != before]
        touched += environment.list_touched_since(self.environment)
        if not changes and touched:
            changes = [f"{format_path(Path(touched[0]))} was touched, so its content may have changed temporarily"]
        if changes:
            message = f"an input changed while the model was being {kind.done}: {'; '.join(changes)}"
            raise BuildError(Problem("EPB415", message, StepId(action.id), "The result was discarded. Run the build again."))


class Executions(Struct, frozen=True):
    """Factory of executions for the actions of one build."""

    surveyor: Surveyor
    toolchains: Provisioning
    progress: Progress
    cancelled: threading.Event
    idle: IdleActions

    @contextmanager
    def open(self, subject: KeyedAction, part: str = "") -> Iterator[Execution]:
        """Open one run of an action, or of a `part` of it, for a `with` block. Raises BuildError if the toolchain has changed.

        The names of the log and of the staging directory end with the name of the part.
        """
        action, workspace, store = subject.action, self.surveyor.workspace, self.surveyor.store
        name = f"{action.id}/{part}" if part else action.id
        environment = self._check_toolchain(action, subject.document)
        blobs = find_blobs(store, subject.needed)
        log = get_log_path(workspace.directory, name, self.surveyor.memory.configuration.recipe)
        log.parent.mkdir(exist_ok=True)
        if not is_regular(log):  # a checkout may contain a link or a pipe
            log.unlink(missing_ok=True)
        with workspace.staging(name.replace("/", "-").replace(":", "-")) as staging:
            yield WatchedExecution(
                environment,
                staging,
                log,
                format_path(log),
                store,
                self.progress,
                self.cancelled,
                known_digests=blobs,
                remembered=self.surveyor.digests,
                slot=None if get_action_type(action).starts_another_process(action) else Slot(action.id, self.idle),
                subject=subject,
                stats_before={path: stat_writes(path) for path in action.files if path not in blobs},
            )

    def _check_toolchain(self, action: Action, document: Mapping[str, Any]) -> Environment:
        """Return the current environment of an action's toolchain. Raises BuildError if `document` describes another environment."""
        kind, environment = get_action_type(action), self.toolchains.current(action)
        changes = describe_differences({"toolchain": document["toolchain"]}, {"toolchain": kind.identity(action, environment)})
        if changes:
            message = f"the toolchain '{environment.name}' changed before the model was {kind.done}: {'; '.join(changes)}"
            raise BuildError(Problem("EPB415", message, StepId(action.id), "Run the build again."))
        return environment


class MissingResultError(BuildError):
    """Error for a missing result that may not be built (EPB406)."""

    def __init__(self, action: Action) -> None:
        message = "the result is neither in the store nor in a remote cache"
        hint = f"Build it with `epbuild run --no-emit --remote-cache write {shlex.quote(action.id)}`."
        super().__init__(Problem("EPB406", message, StepId(action.id), hint))


class NewResult(NamedTuple):
    """Result of an action that was out of date. Another machine may have produced the result earlier."""

    result: ActionResult
    outcome: Outcome
    machine: str | None = None
    """Other machine that produced or found the result. None means this machine."""


class ActionRunner(Struct, frozen=True):
    """Runner of actions. It decides whether an action may run, and on which machine."""

    compiles: bool = True
    """True if missing results may be built."""
    retry: bool = False
    """True if actions that failed earlier with the same key are run again."""
    elsewhere: RemoteMachines | None = None
    """Other machines that run actions. None means that all actions run on this machine."""

    def is_for_others(self, action: Action) -> bool:
        """Return whether an action is to run on another machine."""
        return self.compiles and self.elsewhere is not None and self.elsewhere.runs(action)

    def check(self, action: Action) -> None:
        """Raise EpbuildError if an action cannot or may not be run."""
        if not self.compiles:
            raise MissingResultError(action)
        if not self.is_for_others(action):
            get_action_type(action).check(action)

    def run(self, subject: KeyedAction, expected: Runnable, here: Executions) -> NewResult:
        """Run an action here or on another machine. Raises EpbuildError and Cancelled."""
        action = subject.action
        if self.elsewhere is not None and self.is_for_others(action):
            found = self.elsewhere.run(subject, expected, here.idle)
            if found is not None:
                result = read_result(action, found.result)
                if result is None:
                    message = f"the reply of {found.machine} cannot be used: it is not a result of this action"
                    hint = "Use the same release of epbuild on all machines."
                    raise BuildError(Problem("EPB537", message, StepId(action.id), hint))
                return NewResult(result, "built" if found.is_new else "restored", found.machine)
            get_action_type(action).check(action)
        with here.open(subject) as execution:
            return NewResult(get_action_type(action).run(action, subject.document, execution), "built")

    def finish(self, subject: KeyedAction, result: ActionResult, here: Executions) -> Iterator[ActionResult]:
        """Add the missing parts of a result one by one, and yield the result after each addition. Raises the same errors as `run`."""
        action, kind = subject.action, get_action_type(subject.action)
        for part in kind.missing_parts(action, result):
            if not self.compiles:
                raise MissingResultError(action)
            with here.open(subject, part) as execution:
                result = kind.add_part(action, result, part, execution)
            yield result

"""Runner of actions on this or another machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from epbuild.actions.types import get_action_type, read_result
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.engine.events import Outcome
from epbuild.engine.loop import IdleActions
from epbuild.engine.scheduler import Runnable
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.session.execution import Executions, KeyedAction

if TYPE_CHECKING:
    from epbuild.session.remote_build import RemoteMachines


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

    def run(self, subject: KeyedAction, expected: Runnable, idle: IdleActions, here: Executions) -> NewResult:
        """Run an action here or on another machine. Raises EpbuildError and Cancelled."""
        action = subject.action
        if self.elsewhere is not None and self.is_for_others(action):
            found = self.elsewhere.run(subject, expected, idle)
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

"""`Making`: what a build may make, and on which machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.engine.action import Runnable
from epbuild.engine.events import Outcome
from epbuild.engine.loop import Idle
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.session.execution import KeyedAction
from epbuild.survey.kinds import kind_of, read_result
from epbuild.toolchain.execution import Execution, Workplace

if TYPE_CHECKING:  # few builds have other machines, and many have nothing to make
    from epbuild.compile.makers import ActionMaker
    from epbuild.session.remote_build import Elsewhere


class NewResult(NamedTuple):
    """The result of an action that was to do; the machine that has it, if it is another one, may have had it before."""

    result: ActionResult
    outcome: Outcome
    machine: str | None = None


class Making(Struct, frozen=True):
    """What a build may make: results at all, and once more what failed and would fail the same way; and where."""

    compiles: bool = True
    retry: bool = False
    elsewhere: Elsewhere | None = None
    """The other machines that make results; None: there are none."""

    def maker_of(self, action: Action) -> ActionMaker[Any, Any]:
        """What makes an action on this machine. Raises KeyError where its results are not in the store."""
        if not self.compiles:
            from epbuild.session.making import NoMaker

            return NoMaker()
        from epbuild.compile.makers import maker_of

        return maker_of(action)

    def is_for_others(self, action: Action) -> bool:
        """Whether another machine makes an action."""
        return self.compiles and self.elsewhere is not None and self.elsewhere.takes(action)

    def check(self, action: Action) -> None:
        """Raises EpbuildError where an action cannot be made, or may not."""
        if not self.is_for_others(action):
            self.maker_of(action).check(action)

    def make(self, subject: KeyedAction, key: str, expected: Runnable, idle: Idle, work: Workplace) -> NewResult:
        """Have an action's result made, here or by another machine.

        Raises EpbuildError, and Cancelled.
        """
        action, made = subject.action, None
        if self.elsewhere is not None and self.is_for_others(action):
            made = self.elsewhere.make(subject, key, expected, idle)
            if made is None:
                self.maker_of(action).check(action)
        if made is None:
            with work.open("") as execution:
                return NewResult(self.maker_of(action).make(action, execution), "built")
        result = read_result(action, made.result)
        if result is None:
            message = f"what {made.machine} made cannot be used: it is no result of it"
            raise BuildError(Problem("EPB537", message, StepId(action.id), "Use one release of epbuild on all machines."))
        return NewResult(result, "built" if made.is_new else "restored", made.machine)


MAKES_ALL = Making()


class NotMade(BuildError):
    """The result of an action is not there, and may not be made (EPB406)."""

    def __init__(self, action: Action) -> None:
        message = "its result is neither here nor in a remote cache"
        hint = f"Make it: epbuild run --no-emit --remote-cache write {shlex.quote(action.id)}"
        super().__init__(Problem("EPB406", message, StepId(action.id), hint))


class NoMaker:
    """What makes nothing: for any action, in place of its maker."""

    def check(self, action: Action) -> None:
        raise NotMade(action)

    def make(self, action: Action, execution: Execution) -> ActionResult:
        raise NotMade(action)

    def finish(self, action: Action, result: ActionResult, work: Workplace) -> Iterator[ActionResult]:
        if kind_of(action).unfinished(action, result):
            raise NotMade(action)
        yield from ()

    def remake(self, action: Action, execution: Execution) -> Mapping[str, Path]:
        raise NotMade(action)

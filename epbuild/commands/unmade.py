"""Results that a build without compiling needs, and that are missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.plan.result import ActionResult
from epbuild.plan.steps import Action
from epbuild.survey.kinds import kind_of
from epbuild.toolchain.execution import Execution, Workplace


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

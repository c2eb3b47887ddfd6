"""The failures of a build at its end: each reason once, with its steps.

Failed: 3 steps, for 2 reasons
Unable to compile any nodes. [EPB401]
  compile:bad/npu-SC8380XP/bad0
  compile:bad/npu-SM8750/bad0
The worker crashed (SIGSEGV) while compiling 'good' for npu. [EPB402]
  compile:good/npu/good
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from msgspec import Struct

from epbuild.commands.events import StepCompared
from epbuild.core.errors import Problem, printable
from epbuild.core.units import counted
from epbuild.engine.events import Event, RunStarted, StepFailed
from epbuild.report.terminal.screen import BOLD, has_colors, paint, wrap

_MOST_STEPS = 20


class FailureGroup(Struct, frozen=True):
    """Why steps failed, and which."""

    reason: str
    steps: tuple[str, ...]
    allowed: bool = False
    """Whether the recipe allows that."""


class FailureList:
    """Takes the events of a build, and then has its failures by their reasons, in the order in which these were first met."""

    def __init__(self) -> None:
        self._found: dict[tuple[bool, str], dict[str, str]] = {}
        """For each reason, as far as it is the same for all, how it was put for each step; apart where the recipe allows it."""
        self._keep_going = False

    def report(self, event: Event, /) -> None:
        match event:
            case RunStarted(keep_going=keep_going):
                self._keep_going = keep_going
            case StepFailed(step, problems) | StepCompared(step, problems=problems):
                allowed = isinstance(event, StepFailed) and event.allowed
                for problem in problems:
                    reason = _sentence(problem)
                    self._found.setdefault((allowed, _without_names(reason, step)), {})[step] = reason

    def failures(self) -> list[FailureGroup]:
        return [
            FailureGroup(reason if len(steps) > 1 else next(iter(steps.values())), tuple(steps), allowed)
            for (allowed, reason), steps in self._found.items()
        ]

    @property
    def steps(self) -> frozenset[str]:
        return frozenset(step for steps in self._found.values() for step in steps)

    def lines(self) -> list[str]:
        """The list, between what else ends a build; none where the only failure ended the build, and was shown last."""
        if not self._keep_going and len(self.steps) < 2:
            return []
        found = self.failures()
        return [line for allowed in (True, False) for line in failure_lines([one for one in found if one.allowed is allowed])]


def failure_lines(failures: list[FailureGroup]) -> Iterator[str]:
    """A heading, then each reason, and below it its steps; of failures that are all allowed, or none."""
    steps = {step for failure in failures for step in failure.steps}
    if not steps:
        return
    heading = paint("Failed, as allowed" if failures[0].allowed else "Failed", BOLD, has_colors(sys.stdout))
    yield f"{heading}: {counted(len(steps), 'step')}, for {counted(len(failures), 'reason')}"
    for failure in failures:
        yield from wrap(failure.reason, others="  ", long_words=False)
        rest = len(failure.steps) - _MOST_STEPS
        yield from (f"  {printable(step)}" for step in failure.steps[: _MOST_STEPS + (rest == 1)])
        if rest > 1:
            yield f"  and {rest} more steps, shown above"
    yield ""


def _sentence(problem: Problem) -> str:
    """The reason alone, where the problem has one."""
    reason = problem.message if problem.reason is None else problem.reason
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}. [{problem.code}]"


def _without_names(reason: str, step: str) -> str:
    """A reason without the names of what its step is about, where they stand in quotes: those of a model, for one."""
    names = "|".join(map(re.escape, re.split("[:/]", step)))
    return re.sub(f"'(?:{names})'", "'...'", reason)

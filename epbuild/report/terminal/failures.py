"""Failures of a build, grouped by reason.

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

from epbuild.core.errors import Problem, escape_controls
from epbuild.core.units import format_count
from epbuild.engine.events import Event, RunStarted, StepFailed
from epbuild.report.terminal.screen import BOLD, has_colors, paint, wrap
from epbuild.session.events import StepCompared

_MAX_STEPS = 20


class FailureGroup(Struct, frozen=True):
    """Reason for failures, with the steps that failed for this reason."""

    reason: str
    steps: tuple[str, ...]
    allowed: bool = False
    """True if the recipe allows the failure."""


class FailureList:
    """Collector of a build's failures by reason, in order of first occurrence."""

    def __init__(self) -> None:
        self._found: dict[tuple[bool, str], dict[str, str]] = {}
        """Reason of each step, grouped by whether the recipe allows it and by the reason's text without names."""
        self._keep_going = False

    def report(self, event: Event, /) -> None:
        match event:
            case RunStarted(keep_going=keep_going):
                self._keep_going = keep_going
            case StepFailed(step, problems) | StepCompared(step, problems=problems):
                allowed = isinstance(event, StepFailed) and event.allowed
                for problem in problems:
                    reason = _format_reason(problem)
                    self._found.setdefault((allowed, _remove_names(reason, step)), {})[step] = reason

    def list_failures(self) -> list[FailureGroup]:
        return [
            FailureGroup(reason if len(steps) > 1 else next(iter(steps.values())), tuple(steps), allowed)
            for (allowed, reason), steps in self._found.items()
        ]

    @property
    def steps(self) -> frozenset[str]:
        return frozenset(step for steps in self._found.values() for step in steps)

    def format_lines(self) -> list[str]:
        """Return the lines of the list of failures, or no lines if a single failure ended the build. That failure is shown last."""
        if not self._keep_going and len(self.steps) < 2:
            return []
        found = self.list_failures()
        return [line for allowed in (True, False) for line in format_failures([one for one in found if one.allowed is allowed])]


def format_failures(failures: list[FailureGroup]) -> Iterator[str]:
    """Yield a heading, and each reason with its steps. The recipe allows either all or none of the `failures`."""
    steps = {step for failure in failures for step in failure.steps}
    if not steps:
        return
    heading = paint("Failed (allowed)" if failures[0].allowed else "Failed", BOLD, has_colors(sys.stdout))
    yield f"{heading}: {format_count(len(steps), 'step')}, for {format_count(len(failures), 'reason')}"
    for failure in failures:
        yield from wrap(failure.reason, others="  ", long_words=False)
        rest = len(failure.steps) - _MAX_STEPS
        yield from (f"  {escape_controls(step)}" for step in failure.steps[: _MAX_STEPS + (rest == 1)])
        if rest > 1:
            yield f"  and {rest} more steps, shown above"
    yield ""


def _format_reason(problem: Problem) -> str:
    """Format the reason of a problem, or else its message, as a sentence with its code."""
    reason = problem.message if problem.reason is None else problem.reason
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}. [{problem.code}]"


def _remove_names(reason: str, step: str) -> str:
    """Return a reason in which `'...'` replaces each quoted name from the step's id, such as the model's name."""
    names = "|".join(map(re.escape, re.split("[:/]", step)))
    return re.sub(f"'(?:{names})'", "'...'", reason)

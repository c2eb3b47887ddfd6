"""Failures of a build, grouped by reason."""

from __future__ import annotations

import re

from msgspec import Struct

from epbuild.core.errors import Problem
from epbuild.engine.events import Event, StepFailed
from epbuild.session.events import StepCompared


class ReportedFailure(Struct, frozen=True):
    """Reason for failures, with the steps that failed for this reason."""

    code: str
    """Error code."""
    reason: str
    """Reason, as a sentence without a full stop. `'...'` stands for names in which the steps' reasons differ."""
    hint: str | None
    """Suggested fix, as shown for the first step."""
    steps: tuple[str, ...]
    """Ids of the steps."""
    allowed: bool
    """True if the recipe allows the failures."""


class FailureList:
    """Collector of a build's failures by reason, in order of first occurrence."""

    def __init__(self) -> None:
        self._found: dict[tuple[bool, str, str], dict[str, Problem]] = {}
        """Problem of each step, grouped by whether the recipe allows it, by code, and by the reason's text without names."""

    def report(self, event: Event, /) -> None:
        if isinstance(event, StepFailed | StepCompared):
            allowed = isinstance(event, StepFailed) and event.allowed
            for problem in event.problems:
                key = allowed, problem.code, _remove_names(_get_reason(problem), event.step)
                self._found.setdefault(key, {})[event.step] = problem

    def list_failures(self) -> list[ReportedFailure]:
        return [
            ReportedFailure(
                code, _find_common_reason(general, problems), next(iter(problems.values())).hint, tuple(problems), allowed
            )
            for (allowed, code, general), problems in self._found.items()
        ]

    @property
    def steps(self) -> frozenset[str]:
        return frozenset(step for problems in self._found.values() for step in problems)


def _find_common_reason(general: str, problems: dict[str, Problem]) -> str:
    """Return the reason of all steps, or the `general` text if their reasons differ in names."""
    reasons = set(map(_get_reason, problems.values()))
    return reasons.pop() if len(reasons) == 1 else general


def _get_reason(problem: Problem) -> str:
    """Return the reason of a problem, or else its message, as a sentence."""
    reason = problem.message if problem.reason is None else problem.reason
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}"


def _remove_names(reason: str, step: str) -> str:
    """Return a reason in which `'...'` replaces each quoted name from the step's id, such as the model's name."""
    names = "|".join(map(re.escape, re.split("[:/]", step)))
    return re.sub(f"'(?:{names})'", "'...'", reason)

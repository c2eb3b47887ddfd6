"""Ledger of a build, which counts and reports the outcomes of steps."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from epbuild.core.errors import EpbuildError, Position, Problem
from epbuild.engine.events import Origin, Outcome, Progress, RunFinished, StepFailed, StepFinished, StepsCurrent
from epbuild.engine.scheduler import Cost
from epbuild.engine.tally import Tally


class Ledger:
    """Thread-safe recorder of the outcomes of a build's steps."""

    def __init__(
        self,
        steps: Mapping[str, Sequence[str]],
        progress: Progress,
        positions: Mapping[str, Position] = MappingProxyType({}),
    ) -> None:
        """`positions` has the position of each action's definition in the recipe, as far as it has one."""
        self.outcomes: dict[str, Outcome] = {}
        self.exit_code = 0
        self.steps = steps
        """Steps of each action."""
        self._progress = progress
        self._positions = positions
        self._tally = Tally({}, {}, 1)
        self._end_lock = threading.Lock()
        """Lock for counting and reporting the end of a step, so that reported counts never decrease."""

    def expect(self, costs: Mapping[str, Cost], jobs: int) -> float | None:
        """Start counting the steps of the actions in `costs`. At most `jobs` of these actions run at once.

        Return the estimated seconds for the steps, or None if an action has never been measured.
        """
        self._tally = Tally({action: self.steps[action] for action in costs}, costs, jobs)
        return self._tally.seconds_left()

    def begin(self, action: str) -> None:
        self._tally.begin(action)

    def end(self, event: StepFinished) -> None:
        with self._end_lock:
            self.outcomes[event.step] = event.outcome
            progress = self._tally.end(event.step, compiled=event.outcome == "built")
            self._progress.report(event if progress is None else replace(event, progress=progress))

    def end_current(self, steps: Iterable[str]) -> None:
        """Record steps that are current."""
        current = tuple(steps)
        if current:
            with self._end_lock:
                self.outcomes.update(dict.fromkeys(current, "current"))
                self._progress.report(StepsCurrent(current))

    def end_all(self, action: str, outcome: Outcome, note: str = "", from_: Origin | None = None) -> None:
        """Record that all steps of an action ended, with a duration of 0 seconds."""
        for step in self.steps[action]:
            self.end(StepFinished(step, outcome, 0.0, note, from_=from_))

    def fail(self, action: str, error: EpbuildError, seconds: float, *, allowed: bool, remembered: bool) -> str:
        """Record that an action failed. Report and return the action's faulty step, and record the other steps as skipped."""
        if not allowed:
            self.exit_code = max(self.exit_code, error.exit_code)
        steps = self.steps[action]
        failed, where = find_faulty_step(steps, error.problems), self._positions.get(action)
        file, line = (where.file, where.line) if where is not None else (None, None)
        with self._end_lock:
            self.outcomes[failed] = "allowed" if allowed else "failed"
            progress = self._tally.end(failed, compiled=False)
            self._progress.report(StepFailed(failed, error.problems, progress, allowed, remembered, seconds, file, line))
        for step in steps:
            if step != failed:
                self.end(StepFinished(step, "skipped", 0.0))
        return failed

    def finished(self, seconds: float) -> RunFinished:
        """Return the last event of the build, with the number of steps for each outcome."""
        counts = Counter(self.outcomes.values())
        return RunFinished(
            exit_code=self.exit_code,
            seconds=seconds,
            built=counts["built"] + counts["emitted"],
            restored=counts["restored"],
            current=counts["current"],
            failed=counts["failed"],
            skipped=counts["skipped"],
            allowed=counts["allowed"],
        )


def find_faulty_step(steps: Sequence[str], problems: Iterable[Problem]) -> str:
    """Return the faulty step of a failed action: the first step that a problem names, or else the last step."""
    at_fault = {problem.where for problem in problems}
    return next((step for step in steps if step in at_fault), steps[-1])

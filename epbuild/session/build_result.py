"""Result of a build, collected from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from epbuild.core.errors import BuildError, Problem
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.engine.events import (
    BatchProgress,
    Event,
    Outcome,
    Progress,
    RunFinished,
    StepFailed,
    StepFinished,
    StepsCurrent,
    Warned,
    forward_one_by_one,
)
from epbuild.session.events import StepCompared


class BuildResult(Summarized, Struct, frozen=True):
    """Result of a build that ran to its end."""

    outcomes: Mapping[str, Outcome]
    """Outcomes of the requested steps, and of the steps that they need, by id."""
    failures: Mapping[str, tuple[Problem, ...]]
    """Problems of failed steps, by step id. Steps that are allowed to fail are included."""
    warnings: tuple[Problem, ...]
    finished: RunFinished
    """Event at the end of the build, with counts of steps and the exit code of the command."""

    def summarize(self) -> Summary:
        """Return the steps that are not current, with their problems."""
        counts = Counter(self.outcomes.values())
        steps = format_count(len(self.outcomes), "step")
        head = f"{steps} in {self.finished.seconds:,.1f} s: {', '.join(f'{number} {word}' for word, number in counts.items())}"
        rows = [
            (step, outcome, " ".join(f"{problem.text} [{problem.code}]" for problem in self.failures.get(step, ())))
            for step, outcome in self.outcomes.items()
            if outcome != "current"
        ]
        warnings = [("", "warning", str(problem)) for problem in self.warnings]
        return Summary(head, ("step", "outcome", "problems"), [*rows, *warnings])


class BuildFailed(BuildError):
    """Error of a build with failed steps or comparisons. `problems` has the reasons, and `result` has the outcomes of all steps."""

    def __init__(self, result: BuildResult, *problems: Problem) -> None:
        super().__init__(*problems)
        self.result = result


class ResultCollector(BatchProgress):
    """`Progress` that passes every event on and collects the result of the build."""

    def __init__(self, progress: Progress) -> None:
        self._progress = forward_one_by_one(progress)
        self._outcomes: dict[str, Outcome] = {}
        self._failures: dict[str, tuple[Problem, ...]] = {}
        self._refused: list[Problem] = []
        self._warnings: list[Problem] = []
        self._finished: RunFinished | None = None

    def report(self, event: Event, /) -> None:
        """Collect an event and pass it on."""
        match event:
            case StepFinished(step, outcome):
                self._outcomes[step] = outcome
            case StepsCurrent(steps):
                self._outcomes.update(dict.fromkeys(steps, "current"))
            case StepFailed(step, problems, allowed=allowed):
                self._outcomes[step] = "allowed" if allowed else "failed"
                self._failures[step] = problems
                self._refused += () if allowed else problems
            case StepCompared(step, problems=problems):
                self._refused += problems
            case Warned(problem):
                self._warnings.append(problem)
            case RunFinished():
                self._finished = event
        self._progress.report(event)

    def result(self) -> BuildResult:
        """Return the result. Raises BuildFailed if the build did not succeed."""
        if self._finished is None:
            raise AssertionError("the build ended without a RunFinished event")
        found = BuildResult(self._outcomes, self._failures, tuple(self._warnings), self._finished)
        if self._finished.exit_code:
            raise BuildFailed(found, *self._refused)
        return found

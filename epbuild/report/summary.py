"""The summary of a build as Markdown, for a step of GitHub Actions.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions, "Adding a job summary": the file that the variable
GITHUB_STEP_SUMMARY names is appended to, and takes 1 MiB for each step of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from epbuild.commands.events import OutputRemoved, StepCompared
from epbuild.core.errors import EpbuildError, Problem
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished, Warned
from epbuild.publish.events import OutputCompared
from epbuild.report.amounts import amount, limited
from epbuild.report.changes import Sizes
from epbuild.report.coverage import CoverageList
from epbuild.report.failures import FailureList
from epbuild.report.listener import Listener
from epbuild.report.problems import print_problems
from epbuild.report.progress import summary
from epbuild.report.table import Table, code, written

_MOST_BYTES = 1 << 20
_MOST_ROWS = (1000, 200, 50, 15, 3, 0)
"""How many rows a table has at most: fewer where the summary would be too long."""
_LONGEST_REASON = 2000
_MOST_STEPS = 20


class WithStepSummary(Listener):
    """A listener that hands every event to another one, and in the end appends tables to the summary of the workflow's step."""

    def __init__(self, listener: Listener, path: Path) -> None:
        self._listener = listener
        self._path = path
        self._summary = StepSummary()

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._listener.__exit__(*ended)
        for error in ended:
            if isinstance(error, EpbuildError):
                self._append(self._summary.ended_by(error))

    def report(self, event: Event, /) -> None:
        self._listener.report(event)
        self._summary.report(event)
        if isinstance(event, RunFinished):
            self._append(self._summary.of(event))

    def _append(self, parts: Iterator[str | Table]) -> None:
        try:
            room = _MOST_BYTES - (self._path.stat().st_size if self._path.exists() else 0)
            text = _fitting(list(parts), room)
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            message = f"the summary of this step could not be written to {self._path}: {error.strerror or error}"
            print_problems([Problem("EPB442", message, None, "The build is not concerned.")], "warning")


class StepSummary:
    """Takes the events of a build, and then has what to write of it: sentences, and tables."""

    def __init__(self) -> None:
        self._recipe = ""
        self._steps: list[tuple[str, ...]] = []
        self._outputs: dict[str, Sizes] = {}
        self._warnings: list[Problem] = []
        self._failures = FailureList()
        self._coverage = CoverageList()

    def report(self, event: Event, /) -> None:
        self._failures.report(event)
        self._coverage.report(event)
        match event:
            case RunStarted(recipe=recipe):
                self._recipe = recipe
            case StepFinished(step, outcome, seconds, note, size) if outcome != "current":
                self._row(step, outcome, seconds, size, note)
            case StepFailed(step, allowed=allowed, remembered=remembered):
                ended = "failed, as allowed" if allowed else "failed"
                self._row(step, ended, 0.0, None, "not tried again" if remembered else "")
            case StepCompared(step, verdict, seconds, _, size):
                self._row(step, {"same": "same", "known": "known to differ"}.get(verdict, "differs"), seconds, size, "made again")
            case OutputCompared(_, directory, before, after):
                self._outputs[directory] = Sizes(directory, before, after)
            case OutputRemoved(_, directory, size=size) if size:
                self._outputs[directory] = Sizes(directory, size, None)
            case Warned(problem):
                self._warnings.append(problem)

    def of(self, event: RunFinished) -> Iterator[str | Table]:
        """A build that came to its end."""
        yield f"### epbuild run: {code(self._recipe)}"
        yield f"{summary(event)}."
        yield from self._tables()

    def ended_by(self, error: EpbuildError) -> Iterator[str | Table]:
        """A build that an error kept from beginning, or from going on."""
        yield "### epbuild run"
        rows = tuple((code(str(problem.where or "")), _problem_cell(problem)) for problem in error.problems)
        yield Table("Errors", ("where", "what"), rows)
        yield from self._tables()

    def _tables(self) -> Iterator[Table]:
        failures = self._failures.failures()
        for title, allowed in (("Failures", False), ("Failures that are allowed", True)):
            rows = (
                (code(one.reason, _LONGEST_REASON), "<br>".join(limited([*map(code, one.steps)], _MOST_STEPS)))
                for one in failures
                if one.allowed is allowed
            )
            yield Table(title, ("reason", "steps"), tuple(rows))
        yield self._coverage.table(self._failures.steps)
        warnings = ((code(str(problem.where or "")), _problem_cell(problem)) for problem in self._warnings)
        yield Table("Warnings", ("where", "what"), tuple(warnings))
        sizes = ((code(found.name), *found.in_words) for found in self._outputs.values())
        yield Table("Sizes", ("output", ">before", ">after", ">change", ">"), tuple(sizes))
        yield Table("Steps", ("step", "", ">time", ">size", ""), tuple(self._steps))

    def _row(self, step: str, outcome: str, seconds: float, size: int | None, note: str) -> None:
        took = f"{seconds:,.1f} s" if seconds else ""
        self._steps.append((code(step), outcome, took, "" if size is None else amount(size), code(note) if note else ""))


def _problem_cell(problem: Problem) -> str:
    return code(f"{problem.text} [{problem.code}]", _LONGEST_REASON)


def _fitting(parts: list[str | Table], room: int) -> str:
    """The parts as Markdown, tables with as many rows as there is room for; nothing where there is none."""
    for most in _MOST_ROWS:
        shown = [written(part, most) if isinstance(part, Table) else part for part in parts if isinstance(part, str) or part.rows]
        text = "\n\n".join(shown) + "\n\n"
        if len(text.encode("utf-8", "replace")) <= room:
            return text
    return ""

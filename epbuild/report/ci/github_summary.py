"""Summary of a build in Markdown, for a step of GitHub Actions or a file.

Each step of a job may append up to 1 MiB to the file that GITHUB_STEP_SUMMARY names. See "Adding a job summary" in
https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from epbuild.commands.reporting.failures import FailureList
from epbuild.core.errors import EpbuildError, Problem
from epbuild.core.shown import format_path
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished, Warned
from epbuild.publish.sizes import OutputCompared
from epbuild.report.formatting import Table, format_code, format_size, shorten_list
from epbuild.report.listeners import Listener
from epbuild.report.terminal.changes import SizeChange
from epbuild.report.terminal.coverage import CoverageList, format_coverage_table
from epbuild.report.terminal.event_lines import describe_origin, format_remote, format_summary
from epbuild.report.terminal.problems import print_problems
from epbuild.session.events import OutputRemoved, RemoteCacheUsed, StepCompared

_MAX_BYTES = 1 << 20
_MAX_ROWS = (1000, 200, 50, 15, 3, 0)
"""Limits for the rows of a table. They are tried in order until the summary is short enough."""
_MAX_REASON = 2000
_MAX_STEPS = 20


class WithStepSummary(Listener):
    """Listener that forwards every event, and appends sentences and tables to a summary file when it closes."""

    def __init__(self, listener: Listener, path: Path) -> None:
        self._listener = listener
        self._path = path
        self._recipe = ""
        self._remote: list[str] = []
        self._steps: list[tuple[str, ...]] = []
        self._outputs: dict[str, SizeChange] = {}
        self._warnings: list[Problem] = []
        self._failures = FailureList()
        self._coverage = CoverageList()

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        self._listener.__exit__(*ended)
        for error in ended:
            if isinstance(error, EpbuildError):
                self._append("### epbuild run", _make_problem_table("Errors", error.problems), *self._make_tables())

    def report(self, event: Event, /) -> None:
        for listener in (self._listener, self._failures, self._coverage):
            listener.report(event)
        match event:
            case RunStarted(recipe=recipe):
                self._recipe = recipe
            case StepFinished(step, outcome, seconds, note, size) if outcome != "current":
                self._add_step(step, outcome, seconds, size, ", ".join(filter(None, (note, *describe_origin(event)))))
            case StepFailed(step, allowed=allowed, remembered=remembered):
                ended = "failed (allowed)" if allowed else "failed"
                self._add_step(step, ended, 0.0, None, "not retried" if remembered else "")
            case StepCompared(step, verdict, seconds, _, size):
                self._add_step(
                    step, {"same": "same", "known": "known to differ"}.get(verdict, "differs"), seconds, size, "rebuilt"
                )
            case OutputCompared(_, directory, before, after):
                self._outputs[directory] = SizeChange(directory, before, after)
            case OutputRemoved(_, directory, size=size) if size:
                self._outputs[directory] = SizeChange(directory, size, None)
            case Warned(problem):
                self._warnings.append(problem)
            case RemoteCacheUsed():
                self._remote.append(f"R{format_remote(event)[1:]}.")
            case RunFinished():
                self._append(
                    f"### epbuild run: {format_code(self._recipe)}",
                    f"{format_summary(event)}.",
                    *self._remote,
                    *self._make_tables(),
                )

    def _append(self, *parts: str | Table) -> None:
        try:
            room = _MAX_BYTES - (self._path.stat().st_size if self._path.exists() else 0)
            text = _fit_markdown(parts, room)
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            message = f"cannot write the summary to {format_path(self._path)}: {error.strerror or error}"
            print_problems([Problem("EPB442", message, None, "The build is not affected.")], "warning")

    def _make_tables(self) -> Iterator[Table]:
        failures = self._failures.list_failures()
        for title, allowed in (("Failures", False), ("Allowed failures", True)):
            rows = (
                (
                    format_code(f"{one.reason}. [{one.code}]", _MAX_REASON),
                    "<br>".join(shorten_list([*map(format_code, one.steps)], _MAX_STEPS)),
                )
                for one in failures
                if one.allowed is allowed
            )
            yield Table(title, ("reason", "steps"), tuple(rows))
        yield format_coverage_table(self._coverage.rows, self._failures.steps)
        yield _make_problem_table("Warnings", self._warnings)
        sizes = ((format_code(found.name), *found.cells) for found in self._outputs.values())
        yield Table("Sizes", ("output", ">before", ">after", ">change", ">"), tuple(sizes))
        yield Table("Steps", ("step", "", ">time", ">size", ""), tuple(self._steps))

    def _add_step(self, step: str, outcome: str, seconds: float, size: int | None, note: str) -> None:
        took = f"{seconds:,.1f} s" if seconds else ""
        self._steps.append(
            (format_code(step), outcome, took, "" if size is None else format_size(size), format_code(note) if note else "")
        )


def _make_problem_table(title: str, problems: Iterable[Problem]) -> Table:
    cells = ((format_code(str(one.where or "")), format_code(f"{one.text} [{one.code}]", _MAX_REASON)) for one in problems)
    return Table(title, ("location", "problem"), tuple(cells))


def _fit_markdown(parts: Sequence[str | Table], room: int) -> str:
    """Return the parts as Markdown, with as many table rows as fit into `room` bytes, or an empty text if nothing fits."""
    for max_rows in _MAX_ROWS:
        shown = [
            part.markdown(max_rows) if isinstance(part, Table) else part for part in parts if isinstance(part, str) or part.rows
        ]
        text = "\n\n".join(shown) + "\n\n"
        if len(text.encode("utf-8", "replace")) <= room:
            return text
    return ""

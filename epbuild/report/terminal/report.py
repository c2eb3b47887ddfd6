"""A report in short, in 80 columns, from the tables that end a build.

quickstart: 12 steps, all current
Last build: 2026-11-23 04:10:10, 4.2 s: 8 built, 4 emitted
Outputs: 4 in place, 1.9 MB
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from epbuild.commands.events import ModelCovered
from epbuild.commands.reporting.recipe_values import ReportedCoverage
from epbuild.commands.reporting.values import Report, ReportedBuild, ReportedStep
from epbuild.core.units import counted
from epbuild.engine.events import StepFailed
from epbuild.plan.result import LeftNode
from epbuild.publish.events import SharingSaved
from epbuild.report.amounts import amount
from epbuild.report.terminal.changes import sharing_lines, time_lines
from epbuild.report.terminal.coverage import coverage_lines
from epbuild.report.terminal.difference_lines import difference_lines, local_time
from epbuild.report.terminal.failures import FailureList, failure_lines
from epbuild.report.terminal.screen import BOLD, coloured, painted, print_lines, wrapped
from epbuild.verify.fallback import Outside

_MOST_MODELS = 24
_TAKES_TIME = frozenset({"built", "restored", "emitted"})
_NEVER = "No build of this recipe, with these settings, is remembered here: `epbuild run` makes one."


def print_report(report: Report) -> None:
    print_lines(report_lines(report))


def report_lines(report: Report) -> Iterator[str]:
    yield from _head(report)
    if report.coverage:
        yield ""
        yield from _coverage(report.coverage)
    sections = (
        failure_lines(_failures(report.steps).failures()),
        sharing_lines(_savings(report, measured=True), "saves", "measured, each model alone"),
        sharing_lines(_savings(report, measured=False), "can save", "equal source weights"),
        _times(report),
        difference_lines(report.against) if report.against is not None else (),
    )
    for section in sections:
        lines = [*section]
        while lines and not lines[-1]:
            lines.pop()
        if lines:
            yield ""
            yield from lines


def _head(report: Report) -> Iterator[str]:
    states = Counter(step.state for step in report.steps)
    name = painted(report.recipe.name, BOLD, coloured(sys.stdout))
    found = ", ".join(f"{number} {state}" for state, number in states.items())
    yield f"{name}: {counted(len(report.steps), 'step')}" + (f": {found}" if found else "")
    yield from wrapped(_NEVER if report.build is None else _build(report.build, report.machine.name), others="  ")
    if report.outputs:
        there = [output for output in report.outputs if output.in_place]
        size = amount(sum(output.size for output in there))
        rest = len(report.outputs) - len(there)
        yield f"Outputs: {len(there)} in place, {size}" + (f"; {rest} not as a build would write them" if rest else "")


def _build(build: ReportedBuild, here: str) -> str:
    came = ", ".join(f"{number} {outcome}" for outcome, number in sorted(build.outcomes.items(), key=lambda item: -item[1]))
    ended = {0: "", 130: ", interrupted"}.get(build.exit_code, ", failed")
    where = f" on {build.machine}" if build.machine != here else ""
    return f"Last build: {local_time(build.began)}{where}, {build.seconds:,.1f} s{ended}" + (f": {came}" if came else "")


def _coverage(rows: Sequence[ReportedCoverage]) -> Iterator[str]:
    """The table; of many models, those that are not whole."""
    shown = rows
    if len(rows) > _MOST_MODELS:
        shown = [row for row in rows if row.outcome != "whole"][:_MOST_MODELS]
    yield from coverage_lines([*map(_covered, shown)], total=[*map(_covered, rows)])
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more"


def _covered(row: ReportedCoverage) -> ModelCovered:
    nodes = tuple(LeftNode(node, found.operator, found.reason) for found in row.outside for node in found.nodes)
    outside = Outside(row.member, row.fallback_nodes, nodes) if row.fallback_nodes is not None else None
    return ModelCovered(
        row.step,
        row.model,
        row.target,
        row.outcome,
        row.ep_context_nodes,
        outside,
        row.reason,
        row.size,
        row.seconds,
        row.accuracy,
    )


def _failures(steps: Iterable[ReportedStep]) -> FailureList:
    found = FailureList()
    for step in steps:
        if step.errors:
            found.report(StepFailed(step.id, tuple(error.problem(step.id) for error in step.errors)))
    return found


def _savings(report: Report, *, measured: bool) -> list[SharingSaved]:
    return [SharingSaved(row.step, row.alone, row.shared, row.measured) for row in report.sharing if row.measured is measured]


def _times(report: Report) -> Iterator[str]:
    """Where the time of the last build went."""
    if report.build is not None:
        took = {f"toolchain {span.name}": span.ended - span.started for span in report.build.spans if span.kind == "toolchain"}
        took |= {step.id: step.took for step in report.steps if step.outcome in _TAKES_TIME and step.took is not None}
        yield from time_lines(took, report.build.seconds)

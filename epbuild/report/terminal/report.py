"""Summary of a report on the terminal.

It begins like this:

quickstart: 12 steps, all current
Last build: 2026-11-23 04:10:10, 4.2 s: 8 built, 4 emitted
Outputs: 4 in place, 1.9 MB
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from epbuild.commands.reporting.changes import ComparedModel, ModelChange, ReportedAgainst
from epbuild.commands.reporting.recipe_values import ReportedCoverage
from epbuild.commands.reporting.values import Report, ReportedBuild
from epbuild.core.units import format_count
from epbuild.plan.measuring import make_measurement_id
from epbuild.plan.result import FallbackNode
from epbuild.plan.verification import make_verification_id
from epbuild.publish.sizes import SharingSaved
from epbuild.report.formatting import format_local_time, format_size, shorten_list
from epbuild.report.terminal.changes import SizeChange, format_all_sharing, format_size_table, format_times
from epbuild.report.terminal.coverage import MAX_MODELS, format_coverage
from epbuild.report.terminal.event_lines import format_counts
from epbuild.report.terminal.failures import format_failures
from epbuild.report.terminal.screen import BOLD, has_colors, paint, wrap
from epbuild.session.events import ModelCovered
from epbuild.verify.fallback import FallbackNodes
from epbuild.verify.figures import describe_place, format_figures

_MAX_LINES = 20
_MIN_SECONDS = 1.0
_MIN_PART = 0.2
"""Minimum relative difference between times. Smaller differences are omitted as noise."""
_OUTCOMES = {
    "built": ("built", "emitted"),
    "restored": ("restored",),
    "failed": ("failed",),
    "skipped": ("skipped",),
    "failed (allowed)": ("allowed",),
    "interrupted": ("interrupted",),
}
"""Outcomes of steps, by the label of their number in a build summary."""
_NEVER = "This recipe has not been built here with these settings: run `epbuild run`."


def format_report(report: Report) -> Iterator[str]:
    """Yield the lines of a report's summary."""
    yield from _format_head(report)
    if report.coverage:
        yield ""
        failed = frozenset(step for failure in report.failures for step in failure.steps)
        yield from format_coverage([*map(_to_covered, report.coverage)], failed, MAX_MODELS)
    sections = (
        format_failures(report.failures),
        *format_all_sharing([SharingSaved(row.step, row.alone, row.shared, row.measured, row.made) for row in report.sharing]),
        _format_measurements(report),
        _format_step_times(report),
        format_differences(report.against) if report.against is not None else (),
    )
    for section in sections:
        lines = [*section]
        while lines and not lines[-1]:
            lines.pop()
        if lines:
            yield ""
            yield from lines


def _format_head(report: Report) -> Iterator[str]:
    states = Counter(step.state for step in report.steps)
    name = paint(report.recipe.name, BOLD, has_colors(sys.stdout))
    found = ", ".join(f"{number} {state}" for state, number in states.items())
    yield f"{name}: {format_count(len(report.steps), 'step')}" + (f": {found}" if found else "")
    yield from wrap(_NEVER if report.build is None else _format_build(report.build, report.machine.name), others="  ")
    if report.outputs:
        there = [output for output in report.outputs if output.in_place]
        size = format_size(sum(output.size for output in there))
        rest = len(report.outputs) - len(there)
        yield f"Outputs: {len(there)} in place, {size}" + (f"; {rest} out of date or missing" if rest else "")


def _format_measurements(report: Report) -> Iterator[str]:
    for number, row in enumerate(report.measurements[:_MAX_LINES]):
        if number == 0:
            yield "Measured"
        figures = format_figures(row.figures, row.limits)
        text = f"{row.group}/{row.target}/{row.member}: {figures}, {describe_place(row.on, row.device)}"
        yield from wrap(text, first="  ", others="    ")
    if len(report.measurements) > _MAX_LINES:
        yield f"  and {len(report.measurements) - _MAX_LINES} more, with --json"


def _format_build(build: ReportedBuild, here: str) -> str:
    counts = {words: sum(build.outcomes.get(outcome, 0) for outcome in outcomes) for words, outcomes in _OUTCOMES.items()}
    came = format_counts(counts)
    ended = {0: "", 130: ", interrupted"}.get(build.exit_code, ", failed")
    where = f" on {build.machine}" if build.machine != here else ""
    return f"Last build: {format_local_time(build.began)}{where}, {build.seconds:,.1f} s{ended}" + (f": {came}" if came else "")


def _to_covered(row: ReportedCoverage) -> ModelCovered:
    nodes = tuple(FallbackNode(node, found.operator, found.reason) for found in row.outside for node in found.nodes)
    outside = FallbackNodes(row.member, row.fallback_nodes, nodes) if row.fallback_nodes is not None else None
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
        make_verification_id(row.group, row.target) if row.outcome == "failed verify" else None,
        make_measurement_id(row.group, row.target) if row.outcome == "failed measure" else None,
    )


def _format_step_times(report: Report) -> Iterator[str]:
    """Yield lines with the times of the longest steps of the last build."""
    if report.build is not None:
        took = {f"toolchain {span.name}": span.ended - span.started for span in report.build.spans if span.kind == "toolchain"}
        took |= {step.id: step.work for step in report.steps if step.work is not None}
        yield from format_times(took, report.build.seconds)


def format_differences(found: ReportedAgainst) -> Iterator[str]:
    """Yield the changes since another report was made or since outputs were emitted."""
    since = f"{found.path} of {format_local_time(found.made_at)}" if found.made_at is not None else found.path
    yield f"{paint('Since', BOLD, has_colors(sys.stdout))} {since}:"
    models = [*filter(None, map(_describe_model_change, found.models))]
    versions = [
        f"toolchain {one.toolchain}: {one.package} {one.before or 'none'} -> {one.after or 'none'}" for one in found.versions
    ]
    sources = [
        f"source of {one.model}: {'new' if one.before is None else 'removed' if one.after is None else 'changed'}"
        for one in found.sources
    ]
    sizes = [SizeChange(one.path, one.before, one.after) for one in found.outputs]
    if not (models or versions or sources or sizes):
        yield "nothing has changed"
        return
    for line in (*shorten_list(models, _MAX_LINES), *shorten_list(versions, _MAX_LINES), *shorten_list(sources, _MAX_LINES)):
        yield from wrap(line, others="  ")
    if sizes:
        yield from format_size_table(sizes)
        changed = [len(one.files) for one in found.outputs if one.before is not None and one.after is not None]
        if changed:
            yield f"{format_count(sum(changed), 'file')} with different content, in {format_count(len(changed), 'output')}."


def _describe_model_change(change: ModelChange) -> str | None:
    """Describe the change of a model in one line. Return None if nothing changed, except perhaps small differences in time."""
    name = f"{change.group}/{change.member} for {change.target}"
    old, new = change.before, change.after
    if old is None or new is None:
        model = new or old
        return f"{name}: {'new' if old is None else 'removed'}" + (f" ({model.outcome})" if model is not None else "")
    parts = [*_list_model_changes(old, new)]
    return f"{name}: {'; '.join(parts)}" if parts else None


def _list_model_changes(old: ComparedModel, new: ComparedModel) -> Iterator[str]:
    if old.outcome != new.outcome:
        yield f"{old.outcome} -> {new.outcome}"
    if _are_known_and_differ(old.fallback_nodes, new.fallback_nodes):
        yield f"{old.fallback_nodes} -> {new.fallback_nodes} fallback nodes"
    if _are_known_and_differ(old.ep_context_nodes, new.ep_context_nodes):
        yield f"{old.ep_context_nodes} -> {new.ep_context_nodes} EPContext nodes"
    if old.size is not None and new.size is not None and old.size != new.size:
        yield f"{format_size(old.size)} -> {format_size(new.size)}"
    if old.seconds is not None and new.seconds is not None:
        change = abs(new.seconds - old.seconds)
        if change >= _MIN_SECONDS and change >= _MIN_PART * old.seconds:
            yield f"{old.seconds:,.1f} s -> {new.seconds:,.1f} s"
    for name in sorted({*(old.accuracy or {})} & {*(new.accuracy or {})}):
        one, other = (old.accuracy or {})[name], (new.accuracy or {})[name]
        if one != other:
            yield f"{name} {one:g} -> {other:g}"


def _are_known_and_differ(old: int | None, new: int | None) -> bool:
    """Return whether both numbers are known and differ."""
    return old is not None and new is not None and old != new

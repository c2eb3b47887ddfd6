"""Tables of coverage by model and target.

Coverage: 3 models for 1 target: 1 whole, 1 partial, 1 failed
yolo   phone                                            whole   6.7 MB    1.1 s
enc    phone                                      36 fallback  35.2 MB    6.3 s
  16 DynamicQuantizeLinear, 16 MatMulInteger, 3 DequantizeLinear and 1 Gather.
  Operators of type `MatMulInteger` are not supported by QNN EP (16 nodes)
cls    phone                                           failed
  Unable to compile any nodes
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from epbuild.core.errors import escape_controls
from epbuild.core.units import format_count
from epbuild.engine.events import Event, StepFailed, StepFinished
from epbuild.report.formatting import Table, format_code, format_size
from epbuild.report.listeners import Listener, WaitingRow
from epbuild.report.terminal.screen import BOLD, DIM, WIDTH, has_colors, paint, print_line, print_lines, wrap
from epbuild.session.events import Coverage, ModelCovered

_INDENT = "  "
_GAP = 2
_COLORS: Mapping[Coverage, str] = {
    "whole": "32",
    "partial": "33",
    "on the CPU": DIM,
    "failed verify": "31",
    "failed": "31",
    "not built": DIM,
}
_MAX_REASON = 600
_MAX_ROWS = 10_000
_FIGURES = {"cosine": "cosine {:.6f}", "snr_db": "{:.0f} dB"}
_EXPECTATION_CODES = {"EPB609", "EPB655"}
"""Codes of problems with compiled models that do not meet the recipe's expectations."""


class CoverageList:
    """Collector of a build's coverage, in plan order."""

    def __init__(self) -> None:
        self.rows: list[ModelCovered] = []

    def report(self, event: Event, /) -> None:
        if isinstance(event, ModelCovered):
            self.rows.append(event)

    def format_lines(self, shown: frozenset[str] = frozenset()) -> list[str]:
        """Return the coverage table if there are several models. Omit the reasons for the steps in `shown`."""
        return [*format_coverage(self.rows, shown), ""] if len(self.rows) > 1 else []


def print_coverage(rows: Sequence[ModelCovered]) -> None:
    print_lines(format_coverage(rows))


def print_coverage_markdown(rows: Sequence[ModelCovered]) -> None:
    sys.stdout.write(format_coverage_table(rows).markdown(_MAX_ROWS) + "\n")


def format_coverage(
    rows: Sequence[ModelCovered], shown: frozenset[str] = frozenset(), total: Sequence[ModelCovered] | None = None
) -> Iterator[str]:
    """Yield a summary, and lines with the outcome and fallback nodes of each model and target.

    Reasons for the steps in `shown` are omitted. If `rows` is only a part of all rows, `total` contains all rows.
    """
    color = has_colors(sys.stdout)
    yield f"{paint('Coverage', BOLD, color)}: {_format_summary(rows if total is None else total)}"
    cells = list(map(_format_cells, rows))
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(4)]
    widths = [width + _GAP if width else 0 for width in widths]
    room = WIDTH - sum(widths)
    model = max((len(escape_controls(row.model)) for row in rows), default=0) + _GAP
    first_targets: dict[tuple[str, str], str] = {}
    for row, values in zip(rows, cells, strict=True):
        name = f"{escape_controls(row.model):<{model}}{escape_controls(row.target)}"
        if len(name) > room:
            yield name
            name = ""
        outcome, *others = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
        yield f"{name:<{room}}{paint(outcome, _COLORS[row.outcome], color)}{''.join(others)}".rstrip()
        reason = _format_reason(row)
        if _is_shown(row, shown) or not reason:
            continue
        first = first_targets.setdefault((row.model, reason), row.target)
        if first != row.target:
            reason = f"same as {first}"
        for line in wrap(reason, width=WIDTH - len(_INDENT), long_words=False):
            yield _INDENT + paint(line, DIM, color)


def format_coverage_table(rows: Sequence[ModelCovered], shown: frozenset[str] = frozenset()) -> Table:
    """Return the coverage table for Markdown. Omit the reasons for the steps in `shown`."""
    has_accuracy = any(row.accuracy is not None for row in rows)
    columns = ("model", "target", "", ">size", ">time", *(["accuracy"] if has_accuracy else []), "fallback nodes")
    cells = []
    for row in rows:
        reason = "" if _is_shown(row, shown) else _format_reason(row)
        values = _format_cells(row)[: 4 if has_accuracy else 3]
        cells.append(
            (format_code(row.model), format_code(row.target), *values, format_code(reason, _MAX_REASON) if reason else "")
        )
    return Table("Coverage", columns, tuple(cells), f"{_format_summary(rows)}." if rows else "")


def _format_summary(rows: Sequence[ModelCovered]) -> str:
    counts = Counter(row.outcome for row in rows)
    models, targets = len({row.model for row in rows}), len({row.target for row in rows})
    outcomes = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _COLORS if counts[outcome])
    return f"{format_count(models, 'model')} for {format_count(targets, 'target')}" + (f": {outcomes}" if outcomes else "")


def _format_reason(row: ModelCovered) -> str:
    outside = (row.outside.what, row.outside.why) if row.outside is not None else ()
    return ". ".join(text for text in (row.reason, *outside) if text)


def _is_shown(row: ModelCovered, shown: frozenset[str]) -> bool:
    """Return whether a row's reasons were already shown with its failed step."""
    return (row.verify or row.step) in shown


def _format_cells(row: ModelCovered) -> tuple[str, str, str, str]:
    """Return outcome, size, time and accuracy."""
    outcome = f"{row.outside.count} fallback" if row.outcome == "partial" and row.outside is not None else row.outcome
    size = format_size(row.size) if row.size is not None else ""
    seconds = f"{row.seconds:,.1f} s" if row.seconds is not None else ""
    accuracy = (_FIGURES.get(name, f"{name} {{:g}}").format(value) for name, value in (row.accuracy or {}).items())
    return outcome, size, seconds, ", ".join(accuracy)


class CoverageProgress(Listener):
    """Listener that collects coverage, and writes a line to standard error when a step ends."""

    def __init__(self, coverage: CoverageList) -> None:
        self._coverage = coverage
        self._waiting = WaitingRow()

    def __exit__(self, *ended: object) -> None:
        self._waiting.__exit__(*ended)

    def report(self, event: Event, /) -> None:
        self._coverage.report(event)
        self._waiting.report(event)
        match event:
            case StepFinished(step, outcome, seconds, progress=progress) if outcome != "current" and progress is not None:
                print_line(f"[{progress.done}/{progress.total}] {outcome} {step} ({seconds:.1f} s)", sys.stderr)
            case StepFailed(step, problems, progress) if progress is not None:
                word = "partial" if {problem.code for problem in problems} <= _EXPECTATION_CODES else "failed"
                print_line(f"[{progress.done}/{progress.total}] {word} {step}", sys.stderr)

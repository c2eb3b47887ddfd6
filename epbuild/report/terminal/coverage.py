"""Coverage by model and target.

Coverage: 3 models for 2 targets: 2 whole, 3 partial, 1 failed
       phone-SM8650  phone-SM8750
yolo   whole         whole
enc    36 fallback   36 fallback
cls    failed        2 fallback
enc: 16 DynamicQuantizeLinear, 16 MatMulInteger, 3 DequantizeLinear and 1 Gather.
  Operators of type `MatMulInteger` are not supported by QNN EP (16 nodes)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from epbuild.core.errors import escape_controls
from epbuild.core.units import format_count
from epbuild.engine.events import Event, StepFailed, StepFinished
from epbuild.report.formatting import Table, format_code, format_size, join_names
from epbuild.report.listeners import Listener, WaitingRow
from epbuild.report.terminal.screen import (
    BOLD,
    DIM,
    MIN_WIDTH,
    WIDTH,
    get_text_width,
    get_width,
    has_colors,
    paint,
    print_line,
    print_lines,
    wrap,
)
from epbuild.session.coverage import PARTIAL_CODES
from epbuild.session.events import Coverage, ModelCovered

_INDENT = "  "
_GAP = 2
_COLORS: Mapping[Coverage, str] = {
    "whole": "32",
    "partial": "33",
    "on the CPU": DIM,
    "failed verify": "31",
    "failed measure": "31",
    "failed": "31",
    "not built": DIM,
}
_COMPLETE = {"whole", "on the CPU"}
_LETTERS: Mapping[Coverage, str] = {
    "whole": "W",
    "partial": "P",
    "on the CPU": "C",
    "failed verify": "V",
    "failed measure": "M",
    "failed": "F",
    "not built": "N",
}
_COMPILES = ("compile:", "share:")
_LEGEND = "W whole, number of fallback nodes, C on the CPU, V failed verify, M failed measure, F failed, N not built"
MAX_MODELS = 24
"""Maximum number of models that a build and a report list."""
_MAX_TARGETS = 3
_MAX_REASON = 600
_MAX_ROWS = 10_000
_FIGURES = {"cosine": "cosine {:.6f}", "snr_db": "{:.0f} dB"}


class _Column(NamedTuple):
    """Column of a matrix, for one target or several with equal outcomes."""

    target: str
    head: str
    cells: tuple[str, ...]
    width: int


_FormatCell = Callable[[ModelCovered | None], str]


class CoverageList:
    """Collector of a build's coverage, in plan order."""

    def __init__(self) -> None:
        self.rows: list[ModelCovered] = []
        self._is_partial = False

    def report(self, event: Event, /) -> None:
        match event:
            case StepFinished(step, "current") if step.startswith(_COMPILES):
                self._is_partial = True  # a build covers only the models that it compiled or restored
            case ModelCovered():
                self.rows.append(event)

    def format_lines(self, shown: frozenset[str] = frozenset()) -> list[str]:
        """Return the coverage table if there are several models. Omit the reasons for the steps in `shown`."""
        if len(self.rows) < 2:
            return []
        heading = "Coverage in this build" if self._is_partial else "Coverage"
        return [*format_coverage(self.rows, shown, MAX_MODELS, heading), ""]


def print_coverage(rows: Sequence[ModelCovered]) -> None:
    print_lines(format_coverage(rows))


def print_coverage_details(rows: Sequence[ModelCovered]) -> None:
    print_lines(_format_details(rows))


def print_coverage_markdown(rows: Sequence[ModelCovered]) -> None:
    sys.stdout.write(format_coverage_table(rows).markdown(_MAX_ROWS) + "\n")


def format_coverage(
    rows: Sequence[ModelCovered],
    shown: frozenset[str] = frozenset(),
    max_models: int | None = None,
    heading: str = "Coverage",
    width: int | None = None,
) -> Iterator[str]:
    """Yield a summary, a matrix of models and targets, and the reasons for missing coverage.

    Reasons for the steps in `shown` are omitted. If there are more than `max_models` models, list only models that are not whole.
    `width` is the number of columns, by default that of the terminal.
    """
    color = has_colors(sys.stdout)
    width = get_width() if width is None else width
    first, *others = wrap(f"{heading}: {_format_summary(rows)}", others=_INDENT, width=max(width, MIN_WIDTH))
    yield from (first.replace(heading, paint(heading, BOLD, color), 1), *others)
    models: dict[str, dict[str, ModelCovered]] = {}
    for row in rows:
        models.setdefault(row.model, {})[row.target] = row
    targets = list(dict.fromkeys(row.target for row in rows))
    listed = dict(models)
    if max_models is not None and len(models) > max_models:
        incomplete = [name for name, cells in models.items() if any(cell.outcome not in _COMPLETE for cell in cells.values())]
        listed = {name: models[name] for name in incomplete[:max_models]}
    yield from _format_matrix(listed, targets, max(width, MIN_WIDTH), color)
    if len(listed) < len(models):
        whole = sum(all(cell.outcome in _COMPLETE for cell in cells.values()) for cells in models.values())
        yield (
            f"and {format_count(len(models) - len(listed), 'more model')}, {whole} of them complete" if listed else "all complete"
        )
    yield from _format_reasons([row for cells in listed.values() for row in cells.values()], shown, len(targets), color)


def _format_matrix(
    models: Mapping[str, Mapping[str, ModelCovered]], targets: Sequence[str], width: int, color: bool
) -> Iterator[str]:
    """Yield a line for each model, with a column for each target.

    If the columns do not fit, the common start of the targets' names is written only once, and then equal columns are merged. If they
    still do not fit, the outcomes are letters, and the columns continue in another block of lines.
    """
    if not models:
        return

    def lay_out(merges: bool, prefix: str, format_cell: _FormatCell) -> tuple[int, list[_Column]]:
        groups = _merge_equal(models, targets) if merges else [[target] for target in targets]
        first = max(len(escape_controls(name)) for name in (*models, prefix)) + _GAP
        return first, [_make_column(group, models, prefix, format_cell) for group in groups]

    start = targets[0].rpartition("-")[0] + "-"
    prefix = start if len(start) > 1 and all(target.startswith(start) for target in targets) else ""
    for merges, start, format_cell in (
        (False, "", _format_outcome),
        (False, prefix, _format_outcome),
        (True, prefix, _format_outcome),
    ):
        first, columns = lay_out(merges, start, format_cell)
        if first + sum(column.width for column in columns) - _GAP <= width:
            break
    else:
        first, columns = lay_out(True, start := prefix, _format_letter)
        yield from (paint(line, DIM, color) for line in wrap(_LEGEND, width=width))
    while columns:
        room, count = width - first + _GAP, 0
        for column in columns:
            room -= column.width
            count += room >= 0
        count = max(count, 1)
        yield from _format_block(models, columns[:count], first, start, color)
        columns = columns[count:]


def _format_block(
    models: Mapping[str, Mapping[str, ModelCovered]], columns: Sequence[_Column], first: int, start: str, color: bool
) -> Iterator[str]:
    heads = "".join(f"{column.head:<{column.width}}" for column in columns)
    yield paint(f"{escape_controls(start):<{first}}{heads}".rstrip(), DIM, color)
    for number, (name, cells) in enumerate(models.items()):
        line = f"{escape_controls(name):<{first}}"
        for column in columns:
            row, text = cells.get(column.target), column.cells[number]
            line += (paint(text, _COLORS[row.outcome], color) if row is not None else text) + " " * (column.width - len(text))
        yield line.rstrip()


def _make_column(
    targets: Sequence[str], models: Mapping[str, Mapping[str, ModelCovered]], prefix: str, format_cell: _FormatCell
) -> _Column:
    more = f" +{len(targets) - 1}" if len(targets) > 1 else ""
    head = f"{escape_controls(targets[0].removeprefix(prefix))}{more}"
    texts = tuple(format_cell(cells.get(targets[0])) for cells in models.values())
    return _Column(targets[0], head, texts, max(map(len, (head, *texts))) + _GAP)


def _merge_equal(models: Mapping[str, Mapping[str, ModelCovered]], targets: Sequence[str]) -> list[list[str]]:
    """Return the targets, in groups for which all models have equal outcomes."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for target in targets:
        outcomes = tuple(_format_outcome(cells.get(target)) for cells in models.values())
        groups.setdefault(outcomes, []).append(target)
    return list(groups.values())


def _format_outcome(row: ModelCovered | None) -> str:
    if row is None:
        return "-"
    return f"{row.outside.count} fallback" if row.outcome == "partial" and row.outside is not None else row.outcome


def _format_letter(row: ModelCovered | None) -> str:
    if row is None:
        return "-"
    return str(row.outside.count) if row.outcome == "partial" and row.outside is not None else _LETTERS[row.outcome]


def _format_reasons(rows: Sequence[ModelCovered], shown: frozenset[str], targets: int, color: bool) -> Iterator[str]:
    """Yield each reason for missing coverage once, with its model and targets."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        reason = _format_reason(row)
        if reason and not _is_shown(row, shown):
            reasons.setdefault((row.model, reason), []).append(row.target)
    for (model, reason), found in reasons.items():
        where = "" if len(found) == targets else f" for {join_names(found, _MAX_TARGETS)}"
        for line in wrap(f"{model}{where}: {reason}", others=_INDENT):
            yield paint(line, DIM, color)


def _format_details(rows: Sequence[ModelCovered]) -> Iterator[str]:
    """Yield a summary, and lines with outcome, size, time and accuracy of each model and target."""
    color = has_colors(sys.stdout)
    yield f"{paint('Coverage', BOLD, color)}: {_format_summary(rows)}"
    cells = list(map(_format_cells, rows))
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(4)]
    widths = [width + _GAP if width else 0 for width in widths]
    model = max((len(escape_controls(row.model)) for row in rows), default=0) + _GAP
    names = [f"{escape_controls(row.model):<{model}}{escape_controls(row.target)}" for row in rows]
    needed = max(map(len, names), default=0) + sum(widths)
    room = min(get_text_width(), max(WIDTH, needed)) - sum(widths)
    for row, name, values in zip(rows, names, cells, strict=True):
        if len(name) > room:
            yield name
        outcome, *others = (f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
        yield f"{name if len(name) <= room else '':<{room}}{paint(outcome, _COLORS[row.outcome], color)}{''.join(others)}".rstrip()
    yield from _format_reasons(rows, frozenset(), len({row.target for row in rows}), color)


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
    return (row.verify or row.measure or row.step) in shown


def _format_cells(row: ModelCovered) -> tuple[str, str, str, str]:
    """Return outcome, size, time and accuracy."""
    size = format_size(row.size) if row.size is not None else ""
    seconds = f"{row.seconds:,.1f} s" if row.seconds is not None else ""
    accuracy = (_FIGURES.get(name, f"{name} {{:g}}").format(value) for name, value in (row.accuracy or {}).items())
    return _format_outcome(row), size, seconds, ", ".join(accuracy)


class CoverageProgress(Listener):
    """Listener that writes a line to standard error when a step ends."""

    def __init__(self) -> None:
        self._waiting = WaitingRow()

    def __exit__(self, *ended: object) -> None:
        self._waiting.__exit__(*ended)

    def report(self, event: Event, /) -> None:
        self._waiting.report(event)
        match event:
            case StepFinished(step, outcome, seconds, progress=progress) if outcome != "current" and progress is not None:
                print_line(f"[{progress.done}/{progress.total}] {outcome} {step} ({seconds:.1f} s)", sys.stderr)
            case StepFailed(step, problems, progress) if progress is not None:
                word = "partial" if {problem.code for problem in problems} <= PARTIAL_CODES else "failed"
                print_line(f"[{progress.done}/{progress.total}] {word} {step}", sys.stderr)

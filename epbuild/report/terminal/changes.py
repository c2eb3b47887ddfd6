"""Changes of a build: sizes, savings by sharing, and time.

Size                                      before      after      change
dist/classifier                         185.2 kB   217.9 kB    +32.8 kB   +17.7%
  classifier_qnn.bin                    184.3 kB   217.1 kB    +32.8 kB   +17.8%
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct

from epbuild.commands.reporting.build_record import measure_work
from epbuild.core.units import format_count
from epbuild.diff.sizes import SizeChange as FileChange
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished
from epbuild.publish.sizes import ChangedFile, OutputCompared, SharingSaved
from epbuild.report.formatting import UNKNOWN_PARTS, Table, format_part, format_percent, format_size, format_size_change
from epbuild.report.terminal.screen import BOLD, has_colors, paint, wrap
from epbuild.session.events import OutputRemoved, ToolchainReady

_WIDTHS = (11, 11, 12, 9)
_SIZE_COLUMNS = ("Size", ">before", ">after", ">change", ">")
_MAX_OUTPUTS = 6
_MAX_FILES = 3
_MAX_GROUPS = 6
_MAX_STEPS = 10
_MAX_STEPS_OF_SHORT_BUILD = 4
_LONG_BUILD = 60
"""Minimum seconds of work in a build whose list of steps is long."""
_MIN_SECONDS = 0.05
"""Minimum duration of a step in the list. A shorter duration would be printed as 0.0."""

_SAVING_COLUMNS = ("Sharing (measured, each model alone)", ">unshared", ">shared", ">saved", ">")
_COMMON_COLUMNS = ("Sharing (not measured)", ">", ">", ">size", ">common")

_Row = tuple[str, ...]


class SizeChange(Struct, frozen=True):
    """Size of a file or an output before and after a build. A size is None if the file or output did not exist."""

    name: str
    before: int | None
    after: int | None

    @property
    def change(self) -> int:
        return (self.after or 0) - (self.before or 0)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Cells of a table row: the sizes before and after, the difference, and the difference in percent."""
        before, after = ("-" if size is None else format_size(size) for size in (self.before, self.after))
        if self.before is None or self.after is None:
            return before, after, "new" if self.before is None else "removed", ""
        return before, after, format_size_change(self.change), format_percent(self.change, self.before)


class ChangeReport:
    """Collector that converts a build's events to lines about the build's changes.

    There are no lines if nothing was built or restored, or if a failure ended the build. With `--keep-going`, a failure does
    not end the build.
    """

    def __init__(self) -> None:
        self._outputs: list[OutputCompared] = []
        self._removed: list[OutputRemoved] = []
        self._sharing: list[SharingSaved] = []
        self._seconds: dict[str, float] = {}
        self._keep_going = False

    def report(self, event: Event, /) -> None:
        match event:
            case RunStarted(keep_going=keep_going):
                self._keep_going = keep_going
            case OutputCompared():
                self._outputs.append(event)
            case OutputRemoved():
                self._removed.append(event)
            case SharingSaved():
                self._sharing.append(event)
            case ToolchainReady(name, _, seconds):
                self._seconds[f"toolchain {name}"] = seconds
            case StepFinished(step, "built" | "restored" | "emitted", seconds) | StepFailed(step, seconds=seconds):
                self._seconds[step] = round(seconds, 3)  # as in the build record

    def format_lines(self, ended: RunFinished) -> list[str]:
        if (ended.exit_code and not self._keep_going) or not (ended.built or ended.restored):
            return []
        sections = (
            format_sizes(self._outputs, self._removed),
            *format_all_sharing(self._sharing),
            format_times(measure_work(self._seconds), ended.seconds),
        )
        color = has_colors(sys.stdout)
        shown = [_embolden_word(line, color) if number == 0 else line for lines in sections for number, line in enumerate(lines)]
        return ["", *shown, ""] if shown else []


def format_sizes(outputs: Sequence[OutputCompared], removed: Iterable[OutputRemoved]) -> Iterator[str]:
    """Yield the sizes of changed outputs and of their most changed files, largest change first. If nothing changed, yield one line."""
    sizes = {item: SizeChange(item.directory, item.before, item.after) for item in outputs}
    new = [found for found in sizes.values() if found.before is None]
    changed = [
        item
        for item in outputs
        if item.before is not None and (item.before != item.after or any(_has_row(item, file) for file in item.files))
    ]
    # A moved output was compared at its old path, so that path is not listed as removed.
    moved = {item.step for item in outputs if item.before is not None}
    gone = [SizeChange(item.directory, item.size, None) for item in removed if item.size and item.step not in moved]
    same_size = sum(file.before == file.after for item in outputs for file in item.files)
    if outputs and not changed and not gone and len(new) in (0, len(outputs)):
        total = format_size(sum(item.after for item in outputs))
        others = f"; {format_count(same_size, 'file')} with different content" if same_size else ""
        kind, comparison = ("new output", "") if new else ("output", f", unchanged{others}")
        yield f"Size: {total} in {format_count(len(outputs), kind)}{comparison}."
        return
    if not (changed or gone or new):
        return
    changed.sort(key=lambda item: (-abs(sizes[item].change), item.directory))
    rows: list[_Row] = []
    for item in changed[:_MAX_OUTPUTS]:
        files = [SizeChange(f"  {file.path}", file.before, file.after) for file in item.files if _has_row(item, file)]
        files.sort(key=lambda file: (-abs(file.change), file.name))
        # If a single file explains the whole change, do not repeat its numbers.
        is_whole_change = len(files) == 1 and files[0].change == sizes[item].change
        rows += [
            (item.directory, *(("",) * 4 if is_whole_change else sizes[item].cells)),
            *_limit_rows(files, _MAX_FILES, "  {} other files"),
        ]
    rows += _limit_rows([sizes[item] for item in changed[_MAX_OUTPUTS:]], 0, "{} other outputs")
    rows += _limit_rows(new, 0, "{} new outputs")
    rows += _limit_rows(gone, 0, "{} removed outputs")
    if len(outputs) + len(gone) > 1:
        rows.append(("total", *_sum_sizes([*sizes.values(), *gone]).cells))
    yield from Table("", _SIZE_COLUMNS, tuple(rows)).text(_WIDTHS)
    if same_size:
        yield f"{format_count(same_size, 'other file')} with different content of the same size."


def format_size_table(found: Sequence[SizeChange]) -> Iterator[str]:
    """Yield a table of sizes before and after, largest change first."""
    ordered = sorted(found, key=lambda item: (-abs(item.change), item.name))
    rows = _limit_rows(ordered, _MAX_OUTPUTS, "{} other outputs")
    if len(found) > 1:
        rows.append(("total", *_sum_sizes(found).cells))
    yield from Table("", _SIZE_COLUMNS, tuple(rows)).text(_WIDTHS)


def format_part_changes(sizes: Iterable[FileChange]) -> Iterator[str]:
    """Yield a table of the context binaries and weights files whose sizes changed, with their most changed parts."""
    changed = [item for item in sizes if item.changed and (item.parts or item.kind == "context binary")]
    changed.sort(key=lambda item: (-abs((item.after or 0) - (item.before or 0)), item.artifact, item.name))
    rows: list[_Row] = []
    for item in changed[:_MAX_OUTPUTS]:
        parts = [SizeChange(f"  {format_part(part.kind, part.name)}", part.before, part.after) for part in item.parts]
        rows.append((f"{item.artifact}{item.name}", *SizeChange("", item.before, item.after).cells))
        rows += _limit_rows(parts, _MAX_FILES, "  {} other parts") if parts else [(f"  {UNKNOWN_PARTS}", "", "", "", "")]
    others = [SizeChange("", item.before, item.after) for item in changed[_MAX_OUTPUTS:]]
    rows += _limit_rows(others, 0, "{} other files")
    if rows:
        yield ""
        yield from Table("", ("Size by part", *_SIZE_COLUMNS[1:]), tuple(rows)).text(_WIDTHS)


def format_all_sharing(found: Sequence[SharingSaved]) -> tuple[Iterator[str], Iterator[str]]:
    """Return the lines of measured savings by sharing, and the lines of groups whose savings were not measured."""
    return (
        _format_sharing([item for item in found if item.measured], _format_saving, _SAVING_COLUMNS, _describe_saving),
        _format_sharing([item for item in found if not item.measured], _format_common, _COMMON_COLUMNS, _describe_common),
    )


def _format_sharing(
    found: Sequence[SharingSaved],
    format_cells: Callable[[Sequence[SharingSaved]], _Row],
    columns: tuple[str, ...],
    describe: Callable[[_Row, str], str],
) -> Iterator[str]:
    """Yield a sentence or, if the shares differ between groups, a table with the smallest share first."""
    if len({format_cells([item])[-1] for item in found}) > 1:
        worst = sorted(found, key=lambda item: ((item.unshared - item.shared) / (item.unshared or 1), item.step))
        count = _MAX_GROUPS if len(worst) > _MAX_GROUPS + 1 else len(worst)
        rows = [(item.step, *format_cells([item])) for item in worst[:count]]
        if worst[count:]:
            rows.append((f"{len(worst) - count} other groups", *format_cells(worst[count:])))
        rows.append(("total", *format_cells(worst)))
        yield from Table("", columns, tuple(rows)).text(_WIDTHS)
    elif found:
        where = found[0].step if len(found) == 1 else f"{len(found)} groups"
        yield from wrap(describe(format_cells(found), where), others="  ")


def _describe_saving(cells: _Row, where: str) -> str:
    unshared, _, saved, part = cells
    return f"Sharing saves {saved} of {unshared}{f' ({part})' if part else ''} in {where} (measured, each model alone)."


def _describe_common(cells: _Row, where: str) -> str:
    *_, made, part = cells
    return f"Sharing: {made} in {where}, whose models have {part} of their source weights in common."


def format_times(took: Mapping[str, float], wall: float) -> Iterator[str]:
    """Yield lines with the times of the longest steps, and the sum of the others. `wall` is the duration of the build.

    Yields nothing if at most one step took time.
    """
    longest = sorted((step for step in took if took[step] >= _MIN_SECONDS), key=lambda step: (-took[step], step))
    if len(longest) < 2:
        return
    total = sum(took.values())
    count = _MAX_STEPS if total >= _LONG_BUILD else _MAX_STEPS_OF_SHORT_BUILD
    longest = longest[: count if len(took) <= count else count - 1]
    yield f"Time: {total:,.1f} s of work in {wall:,.1f} s"
    rest = sorted(took.keys() - set(longest))
    shown = {f"{step}, without its compiles" if step.startswith("share:") else step: took[step] for step in longest}
    shown |= {rest[0] if len(rest) == 1 else f"{len(rest)} other steps": sum(took[step] for step in rest)} if rest else {}
    rows = ((step, "", "", f"{own:,.1f} s", f"{100 * own / total:.0f}%") for step, own in shown.items())
    yield from Table("", (), tuple(rows)).text(_WIDTHS)


def _has_row(output: OutputCompared, file: ChangedFile) -> bool:
    """Return whether a file has a table row.

    An output's archive has no row, because it is the output itself. Blobs of an image have no rows, because their names
    mean nothing.
    """
    name = file.path.rpartition("/")[2]
    return file.before != file.after and name != PurePath(output.directory).name and not re.fullmatch("[0-9a-f]{64}", name)


def _embolden_word(heading: str, color: bool) -> str:
    word = re.match(r"\w*", heading)
    length = word.end() if word else 0
    return paint(heading[:length], BOLD, color) + heading[length:]


def _format_common(found: Sequence[SharingSaved]) -> _Row:
    """Return the cells of groups without measured savings: the bytes made, and the share of equal weights in the sources."""
    total = sum(item.unshared for item in found)
    part = format_percent(total - sum(item.shared for item in found), total).lstrip("+")
    return "", "", format_size(sum(item.made for item in found)), part


def _format_saving(found: Sequence[SharingSaved]) -> _Row:
    unshared, shared = (sum(sizes) for sizes in zip(*((item.unshared, item.shared) for item in found), strict=True))
    saved = unshared - shared
    return (
        format_size(unshared),
        format_size(shared),
        format_size_change(saved).lstrip("+"),
        format_percent(saved, unshared).lstrip("+"),
    )


def _limit_rows(found: Sequence[SizeChange], max_rows: int, others: str) -> list[_Row]:
    """Return the first rows, and one row with the sum of the others. If only one row remains, return it unchanged."""
    count = len(found) if len(found) == max_rows + 1 else max_rows
    rows: list[_Row] = [(item.name, *item.cells) for item in found[:count]]
    if rest := found[count:]:
        rows.append((others.format(len(rest)), *_sum_sizes(rest).cells))
    return rows


def _sum_sizes(found: Sequence[SizeChange]) -> SizeChange:
    before = [item.before for item in found if item.before is not None]
    after = [item.after for item in found if item.after is not None]
    return SizeChange("", sum(before) if before else None, sum(after) if after else None)

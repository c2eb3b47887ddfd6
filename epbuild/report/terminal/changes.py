"""The changes of a build, in 80 columns: sizes, savings of sharing, time.

Size                                      before      after      change
dist/classifier                         185.2 kB   217.9 kB    +32.8 kB   +17.7%
  classifier_qnn.bin                    184.3 kB   217.1 kB    +32.8 kB   +17.8%
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from epbuild.commands.events import OutputRemoved, ToolchainReady
from epbuild.core.errors import printable
from epbuild.core.units import counted
from epbuild.core.values import dataclass
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFinished
from epbuild.publish.events import ChangedFile, OutputCompared, SharingSaved
from epbuild.report.amounts import amount, percent, signed
from epbuild.report.terminal.screen import BOLD, WIDTH, coloured, painted, wrapped

_CELLS = (11, 11, 12, 9)
_GAP = 2
_MOST_OUTPUTS = 6
_MOST_FILES = 3
_MOST_GROUPS = 6
_MOST_STEPS = 10
_FEW_STEPS = 4  # of a build in which there is little time to find
_LONG_SECONDS = 60
_LEAST_SECONDS = 0.05  # less is shown as 0.0


@dataclass(frozen=True)
class Sizes:
    """Something with its bytes before and after; None where it was, or is, not there."""

    name: str
    before: int | None
    after: int | None

    @property
    def change(self) -> int:
        return (self.after or 0) - (self.before or 0)

    @property
    def in_words(self) -> tuple[str, str, str, str]:
        """The size before, the size after, the difference and the difference as a part of the size before."""
        before, after = ("-" if size is None else amount(size) for size in (self.before, self.after))
        if self.before is None or self.after is None:
            return before, after, "new" if self.before is None else "removed", ""
        return before, after, signed(self.change), percent(self.change, self.before)


class ChangeReport:
    """Takes the events of a build, and then has the lines before its last one: none where nothing was made, or a failure ended the build.

    A build that went on after a failure (`--keep-going`) has made what did not depend on it.
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
            case StepFinished(step, "built" | "restored" | "emitted", seconds):
                self._seconds[step] = seconds

    def lines(self, ended: RunFinished) -> list[str]:
        if (ended.exit_code and not self._keep_going) or not (ended.built or ended.restored):
            return []
        sections = (
            size_lines(self._outputs, self._removed),
            sharing_lines([item for item in self._sharing if item.measured], "saves", "measured, each model alone"),
            sharing_lines([item for item in self._sharing if not item.measured], "can save", "equal source weights"),
            time_lines(self._seconds, ended.seconds),
        )
        colour = coloured(sys.stdout)
        shown = [
            _with_bold_word(line, colour) if number == 0 else line for lines in sections for number, line in enumerate(lines)
        ]
        return ["", *shown, ""] if shown else []


def size_lines(outputs: Sequence[OutputCompared], removed: Iterable[OutputRemoved]) -> Iterator[str]:
    """What each output was and is, biggest change first, with the files that changed most; one line where there is no change."""
    sizes = {item: Sizes(item.directory, item.before, item.after) for item in outputs}
    new = [found for found in sizes.values() if found.before is None]
    changed = [
        item
        for item in outputs
        if item.before is not None and (item.before != item.after or any(_has_row(item, file) for file in item.files))
    ]
    # An output that has moved was compared with what lay at its old place: that is not gone as well.
    moved = {item.step for item in outputs if item.before is not None}
    gone = [Sizes(item.directory, item.size, None) for item in removed if item.size and item.step not in moved]
    alike = sum(file.before == file.after for item in outputs for file in item.files)
    total = amount(sum(item.after for item in outputs))
    if outputs and not changed and not gone and len(new) in (0, len(outputs)):
        if new:
            yield f"Size: {total} in {counted(len(outputs), 'new output')}."
        else:
            others = f"; {counted(alike, 'file')} with other bytes" if alike else ""
            yield f"Size: {total} in {counted(len(outputs), 'output')}, as before{others}."
        return
    if not (changed or gone or new):
        return
    yield from _row("Size", ("before", "after", "change", ""))
    changed.sort(key=lambda item: (-abs(sizes[item].change), item.directory))
    for item in changed[:_MOST_OUTPUTS]:
        files = [Sizes(f"  {file.path}", file.before, file.after) for file in item.files if _has_row(item, file)]
        files.sort(key=lambda file: (-abs(file.change), file.name))
        # One file's numbers need not be shown twice, if they are all that there is.
        alone = len(files) == 1 and files[0].change == sizes[item].change
        yield from _row(item.directory, ("",) * 4 if alone else sizes[item].in_words)
        yield from _limited_rows(files, _MOST_FILES, "  {} other files")
    yield from _limited_rows([sizes[item] for item in changed[_MOST_OUTPUTS:]], 0, "{} other outputs")
    yield from _limited_rows(new, 0, "{} new outputs")
    yield from _limited_rows(gone, 0, "{} removed outputs")
    if len(outputs) + len(gone) > 1:
        yield from _row("in all", _sum([*sizes.values(), *gone]).in_words)
    if alike:
        yield f"{counted(alike, 'other file')} with other bytes of the same size."


def sharing_lines(found: Sequence[SharingSaved], does: str, yardstick: str) -> Iterator[str]:
    """What sharing saves, or can save, by one yardstick: a sentence, or a table from the least saving on where groups differ in it."""
    if len({_saving([item])[3] for item in found}) > 1:
        yield from _row(f"Sharing ({yardstick})", ("unshared", "shared", "saved", ""))
        worst = sorted(found, key=lambda item: ((item.unshared - item.shared) / (item.unshared or 1), item.step))
        most = _MOST_GROUPS if len(worst) > _MOST_GROUPS + 1 else len(worst)
        for item in worst[:most]:
            yield from _row(item.step, _saving([item]))
        if worst[most:]:
            yield from _row(f"{len(worst) - most} other groups", _saving(worst[most:]))
        yield from _row("in all", _saving(worst))
    elif found:
        unshared, _, saved, part = _saving(found)
        where = found[0].step if len(found) == 1 else f"{len(found)} groups"
        text = f"Sharing {does} {saved} of {unshared}{f' ({part})' if part else ''} in {where} ({yardstick})."
        yield from wrapped(text, others="  ")


def time_lines(seconds: Mapping[str, float], wall: float) -> Iterator[str]:
    """The steps that took longest, and the rest as a sum; nothing where only one took any time. `wall`: what the user waited."""
    took = dict(_own_seconds(seconds))
    longest = sorted((step for step in took if took[step] >= _LEAST_SECONDS), key=lambda step: (-took[step], step))
    if len(longest) < 2:
        return
    total = sum(took.values())
    most = _MOST_STEPS if total >= _LONG_SECONDS else _FEW_STEPS
    longest = longest[: most if len(took) <= most else most - 1]
    yield f"Time: {total:,.1f} s of work in {wall:,.1f} s"
    rest = sorted(took.keys() - set(longest))
    rows = {step: took[step] for step in longest}
    rows |= {rest[0] if len(rest) == 1 else f"{len(rest)} other steps": sum(took[step] for step in rest)} if rest else {}
    for step, own in rows.items():
        yield from _row(step, ("", "", f"{own:,.1f} s", f"{100 * own / total:.0f}%"))


def _has_row(output: OutputCompared, file: ChangedFile) -> bool:
    """Whether a file has a row of its own: not an archive, which is the output, and not the blobs of an image, whose names mean nothing."""
    name = file.path.rpartition("/")[2]
    return file.before != file.after and name != PurePath(output.directory).name and not re.fullmatch("[0-9a-f]{64}", name)


def _with_bold_word(heading: str, colour: bool) -> str:
    word = re.match(r"\w*", heading)
    length = word.end() if word else 0
    return painted(heading[:length], BOLD, colour) + heading[length:]


def _own_seconds(seconds: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The time of each step, less that of other steps: a share step's event has that of its whole session group."""
    compiles = defaultdict[str, float](float)
    for step, took in seconds.items():
        kind, _, place = step.partition(":")
        if kind == "compile":
            compiles[f"share:{place.rpartition('/')[0]}"] += took
    for step, took in seconds.items():
        inner = compiles.get(step, 0.0)
        yield (f"{step}, beside its compiles" if inner else step), max(0.0, took - inner)


def _saving(found: Iterable[SharingSaved]) -> tuple[str, str, str, str]:
    unshared, shared = (sum(sizes) for sizes in zip(*((item.unshared, item.shared) for item in found), strict=True))
    saved = unshared - shared
    return amount(unshared), amount(shared), signed(saved).lstrip("+"), percent(saved, unshared).lstrip("+")


def _limited_rows(found: Sequence[Sizes], most: int, others: str) -> Iterator[str]:
    """So many rows, and the sum of the others as one more, which is no gain for a single other."""
    most = len(found) if len(found) == most + 1 else most
    for item in found[:most]:
        yield from _row(item.name, item.in_words)
    if rest := found[most:]:
        yield from _row(others.format(len(rest)), _sum(rest).in_words)


def size_rows(found: Sequence[Sizes]) -> Iterator[str]:
    """A table of sizes before and after, the biggest change first."""
    yield from _row("Size", ("before", "after", "change", ""))
    yield from _limited_rows(sorted(found, key=lambda item: (-abs(item.change), item.name)), _MOST_OUTPUTS, "{} other outputs")
    if len(found) > 1:
        yield from _row("in all", _sum(found).in_words)


def _sum(found: Sequence[Sizes]) -> Sizes:
    before = [item.before for item in found if item.before is not None]
    after = [item.after for item in found if item.after is not None]
    return Sizes("", sum(before) if before else None, sum(after) if after else None)


def _row(name: str, cells: Sequence[str]) -> Iterator[str]:
    """A name and its numbers, at the right; a name that meets the numbers has lines of its own."""
    numbers = "".join(f"{cell:>{width}}" for cell, width in zip(cells, _CELLS, strict=True)).lstrip()
    text, room = printable(name), WIDTH - len(numbers)
    if len(text) > room - _GAP:
        indent = text[: len(text) - len(text.lstrip())]
        yield from wrapped(text.strip(), indent, f"{indent}  ")
        text = ""
    if text or numbers:
        yield f"{text:<{room}}{numbers}".rstrip()

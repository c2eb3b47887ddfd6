"""Store and remote caches: entries, collections, checks and uploads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.cache.collect import Limits, Reason
from epbuild.cache.entries import KINDS, Kind
from epbuild.commands.cache import CacheCheck, CacheStats
from epbuild.commands.gc import Collection
from epbuild.commands.remote_cache import CheckedResult, Push, PushedResult, RemoteCheck
from epbuild.core.units import counted
from epbuild.report.amounts import amount, limited
from epbuild.report.terminal.screen import is_screen, print_line, print_lines

if TYPE_CHECKING:
    from rich.progress import Progress

_HEADINGS: dict[Kind, str] = {
    "record": "records",
    "blob": "blobs",
    "remote model": "remote models",
    "partial download": "partial downloads",
    "damaged": "set aside as damaged",
}
_LABEL = max(map(len, _HEADINGS.values()))
MOST_NAMED = 6


def print_cache_stats(found: CacheStats) -> None:
    print_line(f"{found.place}")
    print_line(f"{'':<{_LABEL}}{'count':>8}{'size':>10}")
    for kind, (count, size) in found.entries.items():
        print_line(_row(_HEADINGS[kind], [(count, size)]))
    sums = found.entries.values()
    print_line(_row("total", [(sum(count for count, _ in sums), sum(size for _, size in sums))]))
    print_lines(["", str(found.toolchain_place)])
    print_line(_row("toolchains", [found.toolchains]))
    print_line("")
    _print_list(f"Used by {counted(len(found.workspaces), 'workspace')}", found.workspaces)


def print_collection(place: Path, found: Collection, limits: Limits, *, dry_run: bool) -> None:
    """What was removed, and what is kept and why."""
    collected = found.collected
    removed = [entry for entry, _ in collected.removed]
    columns = [removed, collected.needed, collected.recent]
    print_line(
        f"{'':<{_LABEL}}" + "".join(f"{name:>18}" for name in ("to remove" if dry_run else "removed", "needed", "used lately"))
    )
    for kind in KINDS:
        cells = [[entry.size for entry in entries if entry.kind == kind] for entries in columns]
        if any(cells):
            print_line(_row(_HEADINGS[kind], [(len(sizes), sum(sizes)) for sizes in cells]))
    print_line(_row("total", [(len(entries), sum(entry.size for entry in entries)) for entries in columns]))
    print_line("")
    verb = "Would remove" if dry_run else "Removed"
    reasons = Counter(reason for _, reason in collected.removed)
    over = "" if limits.max_size is None else f"to come down to {amount(limits.max_size)}"
    words: dict[Reason, str] = {
        "unused": f"unused for {_age(limits.max_age)}",
        "over size": over,
        "damaged": "set aside as damaged",
    }
    why = [f"{reasons[reason]} {text}" for reason, text in words.items() if reasons[reason]]
    text = f"{verb} {amount(sum(entry.size for entry in removed))}: {', '.join(why)}." if why else "There is nothing to remove."
    print_line(f"{text} {amount(collected.left)} {'would be' if dry_run and why else 'are'} left in {place}.")
    if limits.max_size is not None and collected.left > limits.max_size:
        print_line(f"That is over {amount(limits.max_size)}: what is left is needed, or was used within the last hour.")
    if found.workspaces:
        _print_list(f"Needed: what {counted(len(found.workspaces), 'workspace')} built last", found.workspaces)
    else:
        print_line("Nothing is needed: no workspace that builds with this store is known.")
    if found.gone:
        _print_list(f"No longer there, and {'to be ' if dry_run else ''}forgotten", found.gone)


def print_cache_check(found: CacheCheck) -> None:
    """What is damaged, one after the other, with what it was part of; then the sum."""
    for damage in found.damaged:
        # On two lines: a digest alone takes most of one.
        print_lines([f"damaged {damage.kind} {damage.name}", f"  {damage.why}"])
        for name in damage.part_of or ("no workspace knows what it was part of",):
            print_line(f"  {name}")
    read = f"{counted(found.blobs, 'blob')} ({amount(found.size)}) and {counted(found.records, 'record')}"
    if found.damaged:
        print_line(f"{read}: {len(found.damaged)} damaged. That is set aside; the next build that needs it makes it again.")
    else:
        print_line(f"{read}: all sound.")


def print_push(done: Push) -> None:
    """A line for what was written and what could not be, and the sum."""
    for result in done.results:
        if result.outcome == "written":
            print_line(f"written  {result.step}  {amount(result.size)}")
        elif result.outcome == "failed":
            print_line(f"failed   {result.step}")
    sent = f" ({amount(done.sent_bytes)} in {done.seconds:.1f} s)" if done.sent_bytes else ""
    print_line(f"{done.remote}: {counted(len(done.results), 'result')}, {_outcome_counts(done.results, 'written', sent)}")
    if any(result.outcome == "not here" for result in done.results):
        print_line("What is not here, `epbuild run --no-emit --remote-cache write` makes and writes.")


def print_remote_check(found: RemoteCheck) -> None:
    """What cannot be used, what is not there, each with why; then the sum."""
    width = max((len(result.outcome) for result in found.results if result.outcome != "sound"), default=0)
    for result in found.results:
        if result.outcome != "sound":
            print_line(f"{result.outcome:<{width}}  {result.step}")
            if result.why:
                print_line(f"{'':<{width}}    {result.why}")
    read = f" ({amount(found.received_bytes)} read in {found.seconds:.1f} s)" if found.received_bytes else ""
    print_line(f"{found.remote}: {counted(len(found.results), 'result')}, {_outcome_counts(found.results, 'sound', read)}")
    if any(result.outcome == "unusable" for result in found.results):
        print_line("`epbuild cache push --replace STEP` writes one again, from a store that has it.")


class NoBar:
    """A check whose progress is not shown."""

    def advance(self, done: int, total: int, /) -> None:
        """Drop it."""


class Bar:
    """A bar on a terminal that shows how many bytes of how many are done."""

    def __init__(self, display: Progress, doing: str) -> None:
        self._display = display
        self._task = display.add_task(doing, total=None)

    def advance(self, done: int, total: int, /) -> None:
        self._display.update(self._task, completed=done, total=total)


@contextmanager
def byte_progress(doing: str) -> Iterator[Bar | NoBar]:
    """What shows how far a work is: a bar on a terminal, nothing elsewhere."""
    if not is_screen(sys.stdout):
        yield NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(doing), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stdout), transient=True) as display:
        yield Bar(display, doing)


def _outcome_counts(results: Sequence[PushedResult | CheckedResult], first: str, note: str) -> str:
    """How many results had each outcome; `note` is about the `first`."""
    counts = Counter(result.outcome for result in results)
    parts = [
        f"{counts[outcome]} {outcome}{note if outcome == first else ''}"
        for outcome in sorted(counts, key=lambda name: name != first)
    ]
    return ", ".join(parts)


def _row(label: str, cells: Iterable[tuple[int, int]]) -> str:
    """A line of a table; each cell has a count and bytes, and is only a dash where there is nothing."""
    return (
        f"{label:<{_LABEL}}"
        + "".join(f"{count:>8}{amount(size):>10}" if count else f"{'-':>8}{'':>10}" for count, size in cells).rstrip()
    )


def _print_list(title: str, paths: Sequence[Path]) -> None:
    print_line(f"{title}{':' if paths else '.'}")
    for line in limited([str(path.parent) for path in paths], MOST_NAMED):
        print_line(f"  {line}")


def _age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return counted(int(seconds // length), unit)
    return f"{seconds:g} s"

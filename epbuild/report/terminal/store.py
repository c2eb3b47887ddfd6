"""Terminal output for the store, remote caches and removed outputs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from epbuild.cache.collect import Limits, Reason
from epbuild.cache.entries import KINDS, Kind
from epbuild.commands.cache import CacheCheck, CacheStats, ReportBytes, ignore_bytes
from epbuild.commands.clean import Forgotten
from epbuild.commands.gc import Collection
from epbuild.commands.remote_cache import CheckedResult, Push, PushedResult, RemoteCheck
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.publish.removal import Cleaned
from epbuild.report.formatting import Table, format_size, shorten_list
from epbuild.report.terminal.screen import is_screen, print_line, print_lines

_HEADINGS: dict[Kind, str] = {
    "record": "records",
    "blob": "blobs",
    "remote model": "remote models",
    "partial download": "partial downloads",
    "damaged": "damaged, quarantined",
}
_LABEL = max(map(len, _HEADINGS.values()))
_WIDTHS = (8, 10)
"""Widths of the columns for counts and sizes."""
MAX_NAMED = 6


def print_cache_stats(found: CacheStats) -> None:
    """Print the store's entries by kind, the environments, and the workspaces that use the store."""
    print_line(str(found.place))  # in full: users look for this folder, or delete it
    sums = found.entries.values()
    entries = {_HEADINGS[kind]: sizes for kind, sizes in found.entries.items()}
    entries["total"] = (sum(count for count, _ in sums), sum(size for _, size in sums))
    print_lines(_format_stats(("", ">count", ">size"), entries))
    print_lines(["", str(found.toolchain_place), *_format_stats((), {"toolchains": found.toolchains}), ""])
    _print_list(f"Used by {format_count(len(found.workspaces), 'workspace')}", found.workspaces)


def print_collection(place: Path, found: Collection, limits: Limits, *, dry_run: bool) -> None:
    """Print the removed entries, and the kept entries with the reasons for keeping them."""
    collected = found.collected
    removed = [entry for entry, _ in collected.removed]
    columns = [removed, collected.needed, collected.recent]
    rows = []
    for kind in KINDS:
        found_sizes = [[entry.size for entry in entries if entry.kind == kind] for entries in columns]
        if any(found_sizes):
            rows.append((_HEADINGS[kind], *map(_format_count_and_size, found_sizes)))
    rows.append(("total", *(_format_count_and_size([entry.size for entry in entries]) for entries in columns)))
    headings = ("", ">to remove" if dry_run else ">removed", ">needed", ">recently used")
    widths = (sum(_WIDTHS),) * len(columns)
    print_lines([*Table("", headings, tuple(rows)).text(widths, _LABEL + sum(widths)), ""])
    verb = "Would remove" if dry_run else "Removed"
    reasons = Counter(reason for _, reason in collected.removed)
    over = "" if limits.max_size is None else f"over the limit of {format_size(limits.max_size)}"
    words: dict[Reason, str] = {
        "unused": f"unused for {_format_age(limits.max_age)}",
        "over size": over,
        "damaged": "damaged, quarantined",
    }
    why = [f"{reasons[reason]} {text}" for reason, text in words.items() if reasons[reason]]
    text = f"{verb} {format_size(sum(entry.size for entry in removed))}: {', '.join(why)}." if why else "Nothing to remove."
    print_line(f"{text} {format_size(collected.left)} {'would remain' if dry_run and why else 'remain'} in {format_path(place)}.")
    if limits.max_size is not None and collected.left > limits.max_size:
        print_line(
            f"This exceeds {format_size(limits.max_size)}: everything that remains is needed or was used within the last hour."
        )
    if found.workspaces:
        _print_list(f"Needed by the last builds of {format_count(len(found.workspaces), 'workspace')}", found.workspaces)
    else:
        print_line("Nothing is needed: no known workspace uses this store.")
    if found.gone:
        _print_list(f"Missing workspaces, {'would be' if dry_run else 'now'} forgotten", found.gone)


def print_cache_check(found: CacheCheck) -> None:
    """Print each damaged entry with the results that it belonged to, and then the totals."""
    for damage in found.damaged:
        # Use two lines, because a digest fills most of one.
        print_lines([f"damaged {damage.kind} {damage.name}", f"  {damage.why}"])
        for name in damage.part_of or ("no known workspace has a result with this entry",):
            print_line(f"  {name}")
    read = f"{format_count(found.blobs, 'blob')} ({format_size(found.size)}) and {format_count(found.records, 'record')}"
    if found.damaged:
        print_line(f"{read}: {len(found.damaged)} damaged, quarantined; the next build that needs them recreates them.")
    else:
        print_line(f"{read}: no damage.")


def print_push(done: Push) -> None:
    """Print the results that were written or failed, and the totals."""
    for result in done.results:
        if result.outcome == "written":
            print_line(f"written  {result.step}  {format_size(result.size)}")
        elif result.outcome == "failed":
            print_line(f"failed   {result.step}")
    sent = f" ({format_size(done.sent_bytes)} in {done.seconds:.1f} s)" if done.sent_bytes else ""
    print_line(
        f"{done.remote}: {format_count(len(done.results), 'result')}, {_format_outcome_counts(done.results, 'written', sent)}"
    )
    if any(result.outcome == "not here" for result in done.results):
        print_line("To build and write the missing results, run `epbuild run --no-emit --remote-cache write`.")


def print_remote_check(found: RemoteCheck) -> None:
    """Print each unusable or missing result with the reason, and then the totals."""
    width = max((len(result.outcome) for result in found.results if result.outcome != "sound"), default=0)
    for result in found.results:
        if result.outcome != "sound":
            print_line(f"{result.outcome:<{width}}  {result.step}")
            if result.why:
                print_line(f"{'':<{width}}    {result.why}")
    read = f" ({format_size(found.received_bytes)} read in {found.seconds:.1f} s)" if found.received_bytes else ""
    print_line(
        f"{found.remote}: {format_count(len(found.results), 'result')}, {_format_outcome_counts(found.results, 'sound', read)}"
    )
    if any(result.outcome == "unusable" for result in found.results):
        print_line("To replace an unusable result, run `epbuild cache push --replace STEP` on a machine whose store has it.")


@contextmanager
def show_byte_progress(doing: str, *, shown: bool) -> Iterator[ReportBytes]:
    """Provide a function that updates a progress bar in bytes. The bar needs a terminal, and is visible only if `shown` is set."""
    if not shown or not is_screen(sys.stdout):
        yield ignore_bytes
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(doing), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stdout), transient=True) as display:
        task = display.add_task(doing, total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)


def _format_outcome_counts(results: Sequence[PushedResult | CheckedResult], first: str, note: str) -> str:
    """Format the number of results by outcome. The outcome `first` is listed first, followed by `note`."""
    counts = Counter(result.outcome for result in results)
    parts = [
        f"{counts[outcome]} {outcome}{note if outcome == first else ''}"
        for outcome in sorted(counts, key=lambda name: name != first)
    ]
    return ", ".join(parts)


def _format_stats(headings: tuple[str, ...], entries: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """Yield a row with count and size for each label."""
    rows = ((label, str(count) if count else "-", format_size(size) if count else "") for label, (count, size) in entries.items())
    return Table("", headings, tuple(rows)).text(_WIDTHS, _LABEL + sum(_WIDTHS))


def _format_count_and_size(sizes: Sequence[int]) -> str:
    """Format the number and the sum of sizes as one cell. Without sizes, the cell has a dash."""
    count, size = _WIDTHS
    return f"{len(sizes):>{count}}{format_size(sum(sizes)):>{size}}" if sizes else f"{'-':>{count}}{'':>{size}}"


def _print_list(title: str, paths: Sequence[Path]) -> None:
    print_line(f"{title}{':' if paths else '.'}")
    print_lines(f"  {line}" for line in shorten_list([str(path.parent) for path in paths], MAX_NAMED))


def _format_age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            return format_count(int(seconds // length), unit)
    return f"{seconds:g} s"


def print_cleaned(found: Cleaned, *, dry_run: bool) -> None:
    """Print the removed and kept files of an output."""
    removed = "would remove" if dry_run else "removed"
    if found.removed:
        print_line(
            f"{removed}  {format_path(found.place)}  {format_count(len(found.removed), 'file')}, {format_size(found.size)}"
        )
    words = {
        "not made by epbuild": "epbuild did not write it",
        "changed since": "it was changed after epbuild wrote it; use --force to remove it",
        "in use": "another program uses it, so it was moved to a hidden folder; the next run removes it",
        "of another recipe": f"it is also an output of {found.owner}; run `epbuild clean {found.owner}` to remove it",
    }
    kept = [f"{format_path(found.directory / name)}: {words[why]}" for name, why in found.kept.items()]
    print_lines(f"{'kept':<{len(removed)}}  {line}" for line in shorten_list(kept, MAX_NAMED))


def print_clean_sum(found: Sequence[Cleaned], forgotten: Forgotten | None, recipe: Path, *, dry_run: bool) -> None:
    """Print the totals of `clean`, and how to restore the outputs."""
    files, size = sum(len(item.removed) for item in found), sum(item.size for item in found)
    if forgotten is not None and forgotten.size:
        print_line(
            f"{'would remove' if dry_run else 'removed'}  {format_path(forgotten.directory)}  {format_size(forgotten.size)}"
        )
    if not files:
        print_line("No outputs to remove.")
    elif dry_run:
        print_line(f"Would remove {format_count(files, 'file')}, {format_size(size)}.")
    else:
        print_line(
            f"Removed {format_count(files, 'file')}, {format_size(size)}. Run `epbuild run {recipe}` to restore outputs from the store."
        )

"""Differences between a result and what was made again."""

from __future__ import annotations

from collections.abc import Iterator

from epbuild.commands.events import StepCompared
from epbuild.core.errors import printable
from epbuild.diff.bytes_differ import DifferingBytes, FileDifference
from epbuild.report.amounts import limited

_MOST_PARTS = 10
_LONGEST = 80


def comparison_lines(event: StepCompared) -> Iterator[str]:
    """For each file what differs, by its meaning; then why that is known, and where both are."""
    for item in event.differences:
        yield f"  {printable(item.file)}: {_extent(item)}"
        for part in limited(list(map(_part, item.found)), _MOST_PARTS):
            yield f"    {printable(part)}"
    if event.verdict == "known" and event.known:
        yield f"  known: {event.known}"
    if event.kept:
        yield f"  both are kept: {event.kept}"


def _extent(item: FileDifference) -> str:
    if item.old_size is None:
        return "was not there before"
    if item.new_size is None:
        return "is not there any more"
    sizes = f"{item.old_size:,} bytes" if item.old_size == item.new_size else f"{item.old_size:,} bytes, then {item.new_size:,}"
    if not item.found:
        return f"{sizes}; another SHA-256"
    return f"{sizes}; {item.count:,} differ, the first at byte {item.offset:,}"


def _part(part: DifferingBytes) -> str:
    place = f" in {part.part}" if part.part else ""
    start = f"from byte {part.offset:,} on"
    match part.meaning:
        case "timestamp":
            times = "once" if part.runs == 1 else f"{part.runs:,} times"
            return f"time of day{place}, {times}: {part.old} -> {part.new}"
        case "padding":
            return f"{part.count:,} bytes{place} that look like padding that was never set (every second 16-bit slot), {start}"
        case "text":
            return f"{part.part}: {_short(part.old)} -> {_short(part.new)}"
        case "size":
            return f"{part.part or 'size'}: {part.old} -> {part.new}"
        case "missing":
            return f"{part.part} is not there any more"
        case "added":
            return f"{part.part} was not there before"
    if not part.count:
        return "the same parts, put together in another way"
    shown = f": {part.old} -> {part.new}" if part.old and part.new else ""
    return f"{part.count:,} bytes{place}, {start}{shown}"


def _short(text: str | None) -> str:
    shown = text or ""
    return f"'{shown}'" if len(shown) <= _LONGEST else f"'{shown[:_LONGEST]}…'"

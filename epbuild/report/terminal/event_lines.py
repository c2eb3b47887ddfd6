"""Lines about finished steps, toolchains and comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from epbuild.core.errors import escape_controls
from epbuild.core.units import format_count, format_estimate
from epbuild.diff.byte_differences import DifferingBytes, FileDifference
from epbuild.engine.events import Completion, Event, RunFinished, StepFailed, StepFinished
from epbuild.report.formatting import format_size, shorten_list
from epbuild.report.listeners import FILES, format_rest
from epbuild.report.terminal.screen import paint
from epbuild.session.events import (
    ComparisonFinished,
    Fetched,
    Hashed,
    OutputRemoved,
    RemoteCacheUsed,
    ResultsShared,
    StepCompared,
    ToolchainLocked,
    ToolchainReady,
)
from epbuild.survey.snapshot import format_nothing_to_do

_MAX_PARTS = 10
_MAX_TEXT = 80
_GREEN, _CYAN, _YELLOW, _RED = "32", "36", "33", "31"
_COLORS = {
    "built": _GREEN,
    "emitted": _GREEN,
    "ready": _GREEN,
    "locked": _GREEN,
    "fetched": _GREEN,
    "hashed": _GREEN,
    "restored": _CYAN,
    "removed": _YELLOW,
    "kept": _YELLOW,
    "same": _GREEN,
    "known": _YELLOW,
    "differs": _RED,
    "failed": _RED,
    "skipped": _YELLOW,
}
_LABEL = re.compile(rf"(\[ *\d+/\d+\] )?({'|'.join(_COLORS)})\b")
_LABEL_WIDTH = max(map(len, _COLORS))


def describe_origin(event: StepFinished) -> tuple[str, ...]:
    """Return a text with the machine or cache that a result comes from. For a local result, return an empty tuple."""
    if event.machine is not None:
        return (f"on {event.machine}",)
    return ("from the remote cache",) if event.from_ is not None else ()


def format_waiting(name: str, text: str) -> str:
    """Format a log line about running work."""
    return f"{'...':<{_LABEL_WIDTH}}  {name}  {text}"


def format_summary(event: RunFinished) -> str:
    counts = {
        "built": event.built,
        "restored": event.restored,
        "current": event.current,
        "failed": event.failed,
        "skipped": event.skipped,
        "failed (allowed)": event.allowed,
    }
    text = format_counts(counts) or "no steps"
    if event.exit_code == 0 and not (event.built or event.restored or event.allowed):
        text = format_nothing_to_do(event.current)
    return f"{text} ({event.seconds:.2f} s)"


def format_remote(event: RemoteCacheUsed) -> str:
    """Format the use of a remote cache, such as `remote cache: 46 of 50 found, 1.2 GB in 14 s`."""
    found = [f"{event.found} of {event.asked} found"] if event.asked else []
    written = [f"{event.published} written"] if event.published or not event.asked else []
    size = format_size(event.received_bytes + event.sent_bytes)
    return f"remote cache: {', '.join([*found, *written, size])} in {event.seconds:.{0 if event.seconds >= 10 else 1}f} s"


def format_upload(event: ResultsShared) -> str:
    """Format the progress of uploads, such as `writing results: 1 of 2 done, 1.2 GB of 3.2 GB, about 8 s left`."""
    size = f", {format_size(event.done_bytes)} of {format_size(event.total_bytes)}" if event.total_bytes else ""
    return f"writing results: {event.done} of {event.total} done{size}{format_rest(event.seconds_left)}"


def list_end_lines(event: Event) -> Iterator[str]:
    """Yield the lines for an event that reports finished work. Yield nothing for a step that was current."""
    match event:
        case ToolchainLocked(name, platforms, packages, seconds):
            yield _format_line("locked", seconds, f"toolchain {name}", f"{packages} packages for {', '.join(platforms)}")
        case ToolchainReady(name, version, seconds, note):
            # A toolchain that only prepares models can lack ONNX Runtime.
            words = [f"onnxruntime {version}"] if version != "unknown" else []
            yield _format_line("ready", seconds, f"toolchain {name}", *words, *([note] if note else []))
        case Hashed(total, seconds):
            yield _format_line("hashed", seconds, FILES, format_size(total))
        case Fetched(model):
            yield _format_line("fetched", None, f"model {model}")
        case OutputRemoved(_, directory, files, changed, foreign):
            yield _format_line("removed", None, directory, f"{files} files that the recipe no longer defines")
            for path in changed:
                yield _format_line("kept", None, path, "changed after epbuild wrote it")
            for path in foreign:
                yield _format_line("kept", None, path, "not written by epbuild")
        case StepFailed(step, _, progress, allowed, remembered):
            notes = [*(["allowed by the recipe"] if allowed else []), *(["not retried"] if remembered else [])]
            yield _format_step_number(progress) + _format_line("failed", None, step, *notes)
        case StepCompared():
            yield from _format_comparison_lines(event)
        case StepFinished(step, outcome, seconds, note, size, progress) if outcome != "current":
            if outcome == "emitted":
                # Show the path of the output instead of the step.
                step, note = note, ""
            parts = [step, *([] if size is None else [format_size(size)]), *([note] if note else []), *describe_origin(event)]
            yield _format_step_number(progress) + _format_line(outcome, seconds or None, *parts)


def _format_comparison_lines(event: StepCompared) -> Iterator[str]:
    """Yield lines about the comparison of a rebuilt session group with the stored one.

    The lines have the outcome, the differences in each file, the target's reason for known differences, and the folder with both versions.
    """
    label = {"same": "same", "known": "known", "different": "differs"}[event.verdict]
    number = _format_step_number(event.progress)
    if event.verdict == "same":
        yield number + _format_line(label, event.seconds, event.step, format_count(event.files, "file"), format_size(event.size))
        return
    yield number + _format_line(label, event.seconds, event.step, f"{len(event.differences)} of {event.files} files differ")
    for item in event.differences:
        yield f"  {escape_controls(item.file)}: {_format_extent(item)}"
        for part in shorten_list(list(map(_format_part, item.found)), _MAX_PARTS):
            yield f"    {escape_controls(part)}"
    if event.verdict == "known" and event.known:
        yield f"  known: {event.known}"
    if event.kept:
        yield f"  both versions were kept in {event.kept}"


def format_comparison(event: ComparisonFinished) -> str:
    counts = {
        "identical": event.same,
        "known to differ": event.known,
        "different": event.different,
        "failed": event.failed,
        "skipped": event.skipped,
    }
    return f"rebuilt: {format_counts(counts) or 'nothing'} ({event.seconds:.2f} s)"


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _format_line(label: str, seconds: float | None, *parts: str) -> str:
    took = "" if seconds is None else f"{seconds:.1f} s"
    return f"{label:<{_LABEL_WIDTH}}{took:>8}  " + "  ".join(parts)


def _format_step_number(progress: Completion | None) -> str:
    """Return a prefix such as `[3/12] `, with the numbers of finished steps and of all steps to do."""
    return f"[{progress.done:>{len(str(progress.total))}}/{progress.total}] " if progress is not None else ""


def format_time_left(seconds: float | None) -> str:
    return f", about {format_estimate(seconds)}" if seconds else ""


def paint_label(text: str, *, color: bool) -> str:
    """Color the label at the start of a line, if there is one."""
    found = _LABEL.match(text) if color else None
    if found is None:
        return text
    return text[: found.start(2)] + paint(found[2], _COLORS[found[2]], True) + text[found.end(2) :]


def _format_extent(item: FileDifference) -> str:
    if item.old_size is None:
        return "is new"
    if item.new_size is None:
        return "is missing"
    sizes = f"{item.old_size:,} bytes"
    if item.old_size != item.new_size:
        sizes += f" -> {item.new_size:,} bytes"
    if not item.found:
        return f"{sizes}; different SHA-256"
    return f"{sizes}; {item.count:,} differ, the first at byte {item.offset:,}"


def _format_part(part: DifferingBytes) -> str:
    place = f" in {part.part}" if part.part else ""
    start = f"from byte {part.offset:,} on"
    match part.meaning:
        case "timestamp":
            times = "once" if part.runs == 1 else f"{part.runs:,} times"
            return f"timestamp{place}, {times}: {part.old} -> {part.new}"
        case "padding":
            return f"{part.count:,} bytes{place} that look like uninitialized padding (every second 16-bit slot), {start}"
        case "text":
            return f"{part.part}: {_quote_shortened(part.old)} -> {_quote_shortened(part.new)}"
        case "size":
            return f"{part.part or 'size'}: {part.old} -> {part.new}"
        case "missing":
            return f"{part.part} is missing"
        case "added":
            return f"{part.part} is new"
    if not part.count:
        return "the same parts in a different arrangement"
    shown = f": {part.old} -> {part.new}" if part.old and part.new else ""
    return f"{part.count:,} bytes{place}, {start}{shown}"


def _quote_shortened(text: str | None) -> str:
    shown = text or ""
    return f"'{shown}'" if len(shown) <= _MAX_TEXT else f"'{shown[:_MAX_TEXT]}…'"

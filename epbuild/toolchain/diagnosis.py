"""Diagnosis of a failed worker, by its exit status, reports and log."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.engine.capacity import get_memory
from epbuild.toolchain.process import Ending

Cause = Literal["timed out", "out of memory", "ended", "crashed", "unfit", "custom operators", "cannot write", "raised"]
"""Cause of a worker's failure.

`ended`: the kernel or another process ended the worker by a signal. `unfit`: the machine or the toolchain has a problem. `raised`: the
worker raised an exception about the model or the EP.
"""

MORE_MEMORY = "Make more memory available, or run fewer actions at once (-j)."
FREE_SPACE = "Check the free space in .epbuild/tmp, and the limit on file sizes (`ulimit -f`)."
# Under `ulimit -v`, QNN failed with 83 to 99 % of the limit mapped. One of its messages said that it could not validate any node.
_NEARLY = 0.75
# An EP also reports a lack of memory for graphs that it cannot compile. In one such case, the worker had used 5 % of the memory.
_MUCH = 0.5
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|MemoryError|[Oo]ut of memory|[Cc]annot allocate memory|OpenBLAS error: Memory allocation"
    r"|can't start new thread"
)
_CANNOT_WRITE = re.compile(r"No space left on device|File too large|[Qq]uota exceeded|[Ff]ailed to write")
# SIGHUP, SIGINT, SIGKILL and SIGTERM, which no program sends to itself. Numbers, as Python's signal module on Windows lacks some.
_FROM_OUTSIDE = frozenset({1, 2, 9, 15})
# NTSTATUS codes: https://learn.microsoft.com/openspecs/windows_protocols/ms-erref/596a1078-e883-4972-9bbc-49e60bebca55
_WINDOWS_CRASHES = {
    0xC0000005: "an access violation",
    0xC0000006: "an error reading a file in memory",
    0xC0000017: "out of memory",
    0xC000001D: "an illegal instruction",
    0xC000007B: "a DLL for another architecture",
    0xC0000094: "a division by zero",
    0xC00000FD: "a stack overflow",
    0xC000012D: "out of memory",
    0xC0000135: "a missing DLL",
    0xC0000139: "a DLL without a required function",
    0xC000013A: "Ctrl-C",
    0xC0000142: "a DLL that failed to start",
    0xC0000374: "a damaged heap",
    0xC0000409: "an abort",
}
_SIGNALS_OF_WORKERS = {1: "SIGHUP", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL"}
"""Signals on Linux that Python's signal module on Windows lacks. Workers of a cluster may run on Linux."""
MIN_NTSTATUS = 0x80000000
"""Smallest NTSTATUS code of a warning or an error. Programs exit with smaller numbers."""
_UNFIT: Mapping[str, Cause] = {"unfit": "unfit", "custom_ops": "custom operators"}


class Diagnosis(Struct, frozen=True):
    """Diagnosis of a worker that did not succeed."""

    cause: Cause
    ending: Ending
    report: Mapping[str, Any]
    """Report of the exception that the worker raised; empty if it raised no exception."""
    spare_memory: str = ""
    """Sentence about unused memory, if the EP reported a lack of memory although enough was left; otherwise empty."""

    @property
    def raised(self) -> str | None:
        """Message of the reported exception, on one line. None if there was no exception."""
        return (strip_boilerplate(str(self.report["message"])) or str(self.report["type"])) if self.report else None

    @property
    def from_outside(self) -> bool:
        """True if the worker was ended by a signal that programs do not send to themselves, such as SIGKILL."""
        return -self.ending.status in _FROM_OUTSIDE

    @property
    def end(self) -> str:
        """Predicate of a sentence about how the worker ended, such as "exited with status 1"."""
        status = self.ending.status
        if self.cause == "ended":
            by = "by the kernel for lack of memory" if self.ending.out_of_memory else "by an external signal"
            return f"was killed {by} ({get_signal_name(-status)})"
        if status < 0:
            return f"crashed ({get_signal_name(-status)})"
        if status in _WINDOWS_CRASHES:
            return f"crashed ({_WINDOWS_CRASHES[status]})"
        return f"exited with status {f'0x{status:08X}' if status >= MIN_NTSTATUS else status}"


def diagnose(ending: Ending, entries: Iterable[EpEntry] = ()) -> Diagnosis | None:
    """Return the diagnosis of a worker, or None if the worker succeeded.

    `entries` are the catalog's entries of the worker's EPs.
    """
    last = ending.reports[-1] if ending.reports else {}
    if ending.cause == "exited" and ending.status == 0 and last.get("event") == "finished":
        return None
    report = last if last.get("event") == "failed" else {}
    text = f"{report['type']}: {report['message']}" if report else "\n".join(ending.tail)
    patterns = (entry.out_of_memory for entry in entries if entry.out_of_memory is not None)
    blames_memory = any(re.search(pattern, text) for pattern in patterns)
    spare_memory = _describe_spare_memory(report) if blames_memory else ""
    out_of_memory = _OUT_OF_MEMORY.search(text) is not None or (blames_memory and not spare_memory)
    out_of_memory |= _WINDOWS_CRASHES.get(ending.status) == "out of memory"
    return Diagnosis(_find_cause(ending, report, text, out_of_memory=out_of_memory), ending, report, spare_memory)


def is_at_address_limit(report: Mapping[str, Any]) -> bool:
    """Return whether a worker has mapped nearly all the memory that `ulimit -v` allows."""
    return bool(report.get("mapped", 0) > _NEARLY * report.get("mappable", math.inf))


def _describe_spare_memory(report: Mapping[str, Any]) -> str:
    """Return a sentence about the memory that a failed worker left unused. Empty if little was left, or if the amount is unknown."""
    peak, here = report.get("peak_memory"), get_memory()
    if peak is None or here is None or peak > _MUCH * here or is_at_address_limit(report):
        return ""
    return f"The worker used only {peak / 1e6:.0f} of {here / 1e6:.0f} MB, so memory did not run out: the EP rejected the graph."


def _find_cause(ending: Ending, report: Mapping[str, Any], text: str, *, out_of_memory: bool) -> Cause:
    if ending.cause == "timed out" and not report:
        return "timed out"
    if out_of_memory:
        return "out of memory"
    if not report:
        return "ended" if -ending.status in _FROM_OUTSIDE else "crashed"
    if report["kind"] in _UNFIT:
        return _UNFIT[report["kind"]]
    return "cannot write" if _CANNOT_WRITE.search(text) else "raised"


def is_disk_full(lines: Sequence[str]) -> bool:
    """Return whether a log reports that a file could not be written for lack of space."""
    return _CANNOT_WRITE.search("\n".join(lines)) is not None


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return _SIGNALS_OF_WORKERS.get(number, f"signal {number}")


_MAX_QUOTES = 3
_MAX_REASON = 400
_MAX_QUOTE = 300
_ELLIPSIS = " [...] "
_ERROR, _WARNING, _OTHER = range(3)  # the ranks of log lines
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[([VIWEF]):[^\]]*\]\s*")
_SEVERITY_PREFIX = re.compile(r"^\s*\d+(?:\.\d+)?(?:ms)?\s*\[\s*(ERROR|WARN|WARNING)\s*\]\s*", re.IGNORECASE)
_ERROR_WORDS = re.compile(r"<E>|error\b|\bfail(ed|ure)?\b|terminate called|what\(\):", re.IGNORECASE)
_BOILERPLATE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : ([A-Z_ ]+?) : "
    # Source location, function signature and condition, if a message follows.
    r"|(?:Exception during initialization: |(?<!\S))\S*/onnxruntime/\S+\.(?:cc|h):\d+ .*? was false\. (?=\S)"
)
_PROGRESS = re.compile(r"\d ?%|(?<![\w/.-])\d+ ?(?:/|of) ?\d+(?![\w/.-])")
# Messages that are logged on every Linux host, or on every Windows host without a display (DXGI), even without a failure.
_NOISE = re.compile(
    r"File mapped weights feature|EPContext encryption config unavailable|LIBNATIVE|Failed to create DXGI factory"
    r"|Unable to get producer node for OrtValueInfo|Removing initializer '.*'\. It is not used by any node"
)


def merge_reasons(raised: str | None, lines: Sequence[str]) -> tuple[str | None, str]:
    """Return ONNX Runtime's shortened exception message, and a sentence that quotes additional log lines of the EP.

    ONNX Runtime both logs and raises what an EP reports, with different text around it. Duplicates are removed. The sentence is empty if
    the log adds nothing.
    """
    quotes = _select_quotable(lines)
    if raised is not None:
        quotes = [text for text in quotes if _normalize(text) not in _normalize(raised)]
        longer = [text for text in quotes if _normalize(raised) in _normalize(text)]
        if longer:
            raised, quotes = longer[-1], [text for text in quotes if text not in longer]
        raised = shorten_middle(raised, _MAX_REASON)
    words = _join(quotes)
    return raised, f" The EP logged: {words}" if words else ""


def extract_last_lines(lines: Sequence[str]) -> str:
    """Return the last few log lines of the most severe kind, as one text: errors, or else warnings, or else other lines."""
    return _join(_select_quotable(lines))


def _join(quotes: Sequence[str]) -> str:
    return " | ".join(shorten_middle(text, _MAX_QUOTE) for text in quotes)


def _select_quotable(lines: Sequence[str]) -> list[str]:
    """Return the last distinct messages of the most severe rank."""
    ranks: dict[int, list[str]] = {_ERROR: [], _WARNING: [], _OTHER: []}
    for line in lines:
        if _NOISE.search(line):
            continue
        text, rank = _classify_line(line)
        if text:
            ranks[rank].append(strip_boilerplate(text))
    chosen = next((found for found in ranks.values() if found), [])
    distinct: list[str] = []
    for text in dict.fromkeys(chosen):
        # If one message contains another, the shorter one is kept.
        if not any(_normalize(other) in _normalize(text) for other in distinct):
            distinct = [other for other in distinct if _normalize(text) not in _normalize(other)] + [text]
    return distinct[-_MAX_QUOTES:]


def _normalize(text: str) -> str:
    return text.rstrip(". ").casefold()


def shorten_middle(text: str, most: int) -> str:
    """Return `text`, shortened in the middle to `most` characters. The end is kept because it often contains the reason."""
    if len(text) <= most:
        return text
    end = most // 3
    return text[: most - end - len(_ELLIPSIS)].rstrip() + _ELLIPSIS + text[-end:].lstrip()


def strip_log_prefix(line: str) -> str:
    """Return a log line without its timestamp and source location. Empty for a line that is logged on every host."""
    match = _LOG_PREFIX.match(line) or _SEVERITY_PREFIX.match(line)
    return "" if _NOISE.search(line) else line[match.end() :] if match else line


def is_progress_line(line: str) -> bool:
    """Return whether a log line reports the EP's progress."""
    return _classify_line(line)[1] == _OTHER and _PROGRESS.search(strip_log_prefix(line)) is not None


def _classify_line(line: str) -> tuple[str, int]:
    """Return a log line without its timestamp, and the line's rank. The text is empty for informational lines."""
    match = _LOG_PREFIX.match(line)
    if match:
        rank = {"E": _ERROR, "F": _ERROR, "W": _WARNING}.get(match[1])
        return ("", _OTHER) if rank is None else (line[match.end() :], rank)
    match = _SEVERITY_PREFIX.match(line)
    if match:
        return line[match.end() :], _ERROR if match[1].upper() == "ERROR" else _WARNING
    return line, _ERROR if _ERROR_WORDS.search(line) else _OTHER


def strip_boilerplate(message: str) -> str:
    """Return a message of ONNX Runtime on one line, without boilerplate or a final period."""
    return _BOILERPLATE.sub("", " ".join(message.split())).rstrip(". ")

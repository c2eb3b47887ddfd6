"""Diagnosis of a worker's end, by its exit status, reports and log."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.engine.capacity import memory_here
from epbuild.toolchain.log_lines import without_boilerplate
from epbuild.toolchain.process import Ending

Cause = Literal["timed out", "out of memory", "ended", "crashed", "unfit", "custom operators", "cannot write", "raised"]
"""What ended a worker that did not succeed. It was `ended` by a signal from outside; `unfit` is its machine or toolchain; `raised` is an
exception about the model or the EP."""

MORE_MEMORY = "Give it more memory, or run fewer at once (-j)."
FREE_SPACE = "Check the free space of .epbuild/tmp, and the limit on the size of a file (`ulimit -f`)."
# Under `ulimit -v`, QNN failed with 83 to 99 % of it mapped, and logged for one that it could validate no node.
_NEARLY = 0.75
# An EP reports a lack of memory for graphs that it cannot compile, too. Such a worker had used a twentieth of the memory.
_MUCH = 0.5
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|MemoryError|[Oo]ut of memory|[Cc]annot allocate memory|OpenBLAS error: Memory allocation"
    r"|can't start new thread"
)
_CANNOT_WRITE = re.compile(r"No space left on device|File too large|[Qq]uota exceeded|[Ff]ailed to write")
# SIGHUP, SIGINT, SIGKILL and SIGTERM: no program sends them to itself by mistake. Not all are in Python's signal module on Windows.
_FROM_OUTSIDE = frozenset({1, 2, 9, 15})
_WINDOWS_CRASHES = {0xC0000005: "an access violation", 0xC0000409: "an abort", 0xC00000FD: "a stack overflow"}
_UNFIT: Mapping[str, Cause] = {"unfit": "unfit", "custom_ops": "custom operators"}


class Diagnosis(Struct, frozen=True):
    """Why a worker did not succeed."""

    cause: Cause
    ending: Ending
    report: Mapping[str, Any]
    """What it reported of the exception that it raised; empty where it reported none."""
    spare_memory: str = ""
    """Sentence on the memory that was left, if the EP reported a lack of memory all the same; else empty."""

    @property
    def raised(self) -> str | None:
        """The message of the exception, on one line; None where it reported none."""
        return (without_boilerplate(str(self.report["message"])) or str(self.report["type"])) if self.report else None

    @property
    def from_outside(self) -> bool:
        """Whether a signal ended it that no program sends to itself."""
        return -self.ending.status in _FROM_OUTSIDE

    @property
    def end(self) -> str:
        """How it ended, as a clause without its subject."""
        status = self.ending.status
        if self.cause == "ended":
            by = "by the kernel for lack of memory" if self.ending.out_of_memory else "from outside"
            return f"was ended {by} ({signal_name(-status)})"
        if status < 0:
            return f"crashed ({signal_name(-status)})"
        return f"crashed ({_WINDOWS_CRASHES[status]})" if status in _WINDOWS_CRASHES else f"ended with status {status}"


def diagnose(ending: Ending, entries: Iterable[EpEntry] = ()) -> Diagnosis | None:
    """Why a worker did not succeed, which ran EPs with these catalog entries; None where it did."""
    last = ending.reports[-1] if ending.reports else {}
    if ending.how == "exited" and ending.status == 0 and last.get("event") == "finished":
        return None
    report = last if last.get("event") == "failed" else {}
    text = f"{report['type']}: {report['message']}" if report else "\n".join(ending.tail)
    patterns = (entry.out_of_memory for entry in entries if entry.out_of_memory is not None)
    blames_memory = any(re.search(pattern, text) for pattern in patterns)
    spare_memory = _spare_memory(report) if blames_memory else ""
    out_of_memory = _OUT_OF_MEMORY.search(text) is not None or (blames_memory and not spare_memory)
    return Diagnosis(_cause(ending, report, text, out_of_memory=out_of_memory), ending, report, spare_memory)


def meets_address_limit(report: Mapping[str, Any]) -> bool:
    """Return whether a worker has mapped nearly all the memory that `ulimit -v` allows."""
    return bool(report.get("mapped", 0) > _NEARLY * report.get("mappable", math.inf))


def _spare_memory(report: Mapping[str, Any]) -> str:
    """Return a sentence on the memory that a failed worker left unused; empty if it used much of it, or if that is unknown."""
    peak, here = report.get("peak_memory"), memory_here()
    if peak is None or here is None or peak > _MUCH * here or meets_address_limit(report):
        return ""
    return f"The worker had used {peak / 1e6:.0f} of {here / 1e6:.0f} MB: the EP refused the graph, and memory was not short."


def _cause(ending: Ending, report: Mapping[str, Any], text: str, *, out_of_memory: bool) -> Cause:
    if ending.how == "timed out" and not report:
        return "timed out"
    if out_of_memory:
        return "out of memory"
    if not report:
        return "ended" if -ending.status in _FROM_OUTSIDE else "crashed"
    if report["kind"] in _UNFIT:
        return _UNFIT[report["kind"]]
    return "cannot write" if _CANNOT_WRITE.search(text) else "raised"


def could_not_write(lines: Sequence[str]) -> bool:
    """Whether a log reports that there was no room for a file."""
    return _CANNOT_WRITE.search("\n".join(lines)) is not None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

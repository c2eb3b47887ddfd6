"""Events of a build as JSON lines, and builds as Chrome traces.

Perfetto (ui.perfetto.dev) shows traces in the "Trace Event Format":
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. In a trace, a machine is a
process, and a slot for actions is a thread. Slices of a thread are nested or disjoint. If two slices begin together, the
longer one comes first.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any

from msgspec import Struct

from epbuild.commands.reporting.build_record import BuildRecord, ReportedSpan, StepRun
from epbuild.core.errors import Problem
from epbuild.engine.events import Event, StepFinished, StepsCurrent
from epbuild.report.json.documents import FORMAT, build_problem_view, to_plain
from epbuild.report.listeners import Listener

_Event = dict[str, Any]
_HERE = 1
_SPAN_THREADS = {"toolchain": "toolchains", "fetch": "model downloads", "upload": "result uploads"}
_FIRST_LANE = 10_000
"""Number of the first thread for toolchains, downloads and uploads."""


class JsonLines(Listener):
    """Listener that writes each event as a line of JSON to standard output."""

    def report(self, event: Event, /) -> None:
        if isinstance(event, StepsCurrent):
            sys.stdout.write(_format_current_lines(event))  # Flush these lines with the next event, because there are many.
        else:
            sys.stdout.write(_format_line(event))
            sys.stdout.flush()


def _format_line(event: Event) -> str:
    kind: Any = type(event)
    document = {"event": format_event_name(kind), "format": FORMAT, "time": round(time.time(), 3), **_to_json_value(event)}
    return f"{json.dumps(document)}\n"


def _format_current_lines(event: StepsCurrent) -> str:
    """Return a line for each current step. The lines differ only in the step's id."""
    any_step = "\0"
    before, after = _format_line(StepFinished(any_step, "current", 0.0)).split(encode_basestring_ascii(any_step))
    return "".join([f"{before}{encode_basestring_ascii(step)}{after}" for step in event.steps])


@cache
def format_event_name(kind: Any) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _to_json_value(value: Any) -> Any:
    """Convert a value to JSON-compatible data. Floats are rounded, and trailing underscores of field names are removed."""
    match value:
        case float():
            return round(value, 3)
        case Problem():
            return to_plain(build_problem_view(value))
        case Struct():
            return {name.rstrip("_"): _to_json_value(getattr(value, name)) for name in value.__struct_fields__}
        case tuple():
            return [_to_json_value(item) for item in value]
    return value


class _StartedStep(Struct, frozen=True):
    """Step that was started. `pid` is the number of its machine's process in the trace."""

    run: StepRun
    pid: int
    began: float
    ended: float

    @property
    def place(self) -> tuple[int, int]:
        """Numbers of the process and the thread in the trace."""
        return self.pid, (self.run.worker or 0) + 1


def build_trace_document(record: BuildRecord | None) -> dict[str, Any]:
    """Return the trace of a build. The trace is empty if `record` is None."""
    if record is None:
        return {"displayTimeUnit": "ms", "traceEvents": []}
    machines = dict.fromkeys(run.machine for run in record.runs if run.machine is not None)
    processes: dict[str | None, int] = {None: _HERE, **{machine: number for number, machine in enumerate(machines, _HERE + 1)}}
    begun = [
        _StartedStep(run, processes[run.machine], run.started, run.ended)
        for run in record.runs
        if run.started is not None and run.ended is not None
    ]
    events = [
        *(event for machine, pid in processes.items() for event in _label_events("process", pid, 0, machine or record.machine)),
        *_label_threads(begun),
        *_make_slices(begun),
        *_make_span_slices(record.spans),
        *_make_counters(begun),
    ]
    about = {"epbuild": record.epbuild, "recipe": record.recipe, "began": record.began, "exit_code": record.exit_code}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _label_events(what: str, pid: int, tid: int, name: str) -> Iterator[_Event]:
    """Yield the events that set the name and the position of a process or thread."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    yield {**common, "name": f"{what}_name", "args": {"name": name}}
    yield {**common, "name": f"{what}_sort_index", "args": {"sort_index": tid or pid}}


def _label_threads(steps: Iterable[_StartedStep]) -> Iterator[_Event]:
    for pid, tid in sorted({step.place for step in steps}):
        yield from _label_events("thread", pid, tid, f"slot {tid}")


def _make_slices(steps: Iterable[_StartedStep]) -> Iterator[_Event]:
    """Return the slices of steps and their phases, in order."""
    found = [event for step in steps for event in _make_step_slices(step)]
    return iter(sorted(found, key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"])))


def _make_step_slices(step: _StartedStep) -> Iterator[_Event]:
    name, phases = step.run.step, step.run.phases
    yield _make_slice(name, name.partition(":")[0], step.place, (step.began, step.ended), _make_arguments(step.run))
    ends = [*(began for _, began in phases[1:]), step.ended]
    for (doing, began), ended in zip(phases, ends, strict=False):
        yield _make_slice(doing, "phase", step.place, (began, min(ended, step.ended)), {})


def _make_arguments(run: StepRun) -> dict[str, Any]:
    found = {
        "outcome": run.outcome,
        "was": run.was,
        "because": list(run.because),
        "size": run.size,
        "peak_memory": run.memory,
        "errors": [f"{error.message} [{error.code}]" for error in run.errors],
    }
    return {name: value for name, value in found.items() if value not in (None, [])}


def _make_span_slices(spans: Iterable[ReportedSpan]) -> Iterator[_Event]:
    """Yield the slices of toolchains, downloads and uploads. Work that overlaps in time is on separate threads."""
    ends: dict[str, list[float]] = {kind: [] for kind in _SPAN_THREADS}
    numbers: dict[tuple[str, int], int] = {}
    for span in sorted(spans, key=lambda span: span.started):
        lanes = ends[span.kind]
        lane = next((number for number, ended in enumerate(lanes) if ended <= span.started), len(lanes))
        lanes[lane : lane + 1] = [span.ended]
        if (span.kind, lane) not in numbers:
            numbers[span.kind, lane] = _FIRST_LANE + len(numbers)
            yield from _label_events("thread", _HERE, numbers[span.kind, lane], _SPAN_THREADS[span.kind])
        place = (_HERE, numbers[span.kind, lane])
        yield _make_slice(span.name, span.kind, place, (span.started, span.ended), {"failed": True} if span.failed else {})


def _make_slice(
    name: str, category: str, place: tuple[int, int], interval: tuple[float, float], arguments: dict[str, Any]
) -> _Event:
    pid, tid = place
    began, ended = map(_to_microseconds, interval)
    timed = {"ph": "X", "ts": began, "dur": max(0, ended - began)}
    return {"name": name, "cat": category, **timed, "pid": pid, "tid": tid, "args": arguments}


def _make_counters(steps: Iterable[_StartedStep]) -> Iterator[_Event]:
    """Yield the total peak memory of the running actions whenever it changes."""
    changes: dict[int, Counter[int]] = {}
    for step in steps:
        if step.run.memory:
            at = changes.setdefault(step.pid, Counter())
            at[_to_microseconds(step.began)] += step.run.memory
            at[_to_microseconds(step.ended)] -= step.run.memory
    for pid, at in changes.items():
        total = 0
        for moment, change in sorted(at.items()):
            total += change
            yield {
                "name": "peak memory of running actions",
                "ph": "C",
                "ts": moment,
                "pid": pid,
                "tid": 0,
                "args": {"bytes": total},
            }


def _to_microseconds(seconds: float) -> int:
    return round(seconds * 1e6)

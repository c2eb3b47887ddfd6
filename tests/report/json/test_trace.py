"""Trace of a build as Perfetto shows it: nested slices, each on its machine and slot."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from msgspec.structs import replace

from epbuild.commands.reporting.build_record import ReportedError, ReportedSpan, StepRun
from epbuild.report.json.events import build_trace_document
from tests.support.build_records import EMPTY

SHARE, ONE, TWO, OTHER, LOST = "share:g/npu", "compile:g/npu/one", "compile:g/npu/two", "compile:h/npu/x", "compile:i/npu/y"


def ran(step: str, times: tuple[float, float] | None, worker: int | None = 0, **changes: Any) -> StepRun:
    began, ended = times if times is not None else (None, None)
    found: dict[str, Any] = {
        "step": step,
        "outcome": "built",
        "seconds": 1.0,
        "started": began,
        "ended": ended,
        "worker": worker,
        "machine": None,
        "origin": None,
        "was": "new",
        "because": (),
        "key": None,
        "size": None,
        "memory": None,
        "errors": (),
        "phases": (),
    }
    return StepRun(**{**found, **changes})


RECORD = replace(
    EMPTY,
    began=1_800_000_000.0,
    seconds=10.0,
    exit_code=1,
    jobs=2,
    steps=6,
    todo=6,
    runs=(
        ran(ONE, (1.0, 4.0), phases=(("staging", 1.0), ("compiling", 2.0))),
        ran(TWO, (4.0, 9.0), phases=(("compiling", 4.0),)),
        ran(SHARE, (1.0, 9.0), memory=1000, size=5, because=("it was never built",)),
        ran(OTHER, (2.0, 8.0), 1, machine="far", memory=300),
        ran(LOST, (8.5, 9.5), 1, outcome="failed", memory=50, errors=(ReportedError("EPB401", "no", None, None, None),)),
        ran("emit:g/npu/directory", None, None, outcome="skipped"),
    ),
    spans=(
        ReportedSpan("toolchain", "qnn", 0.0, 1.0, False),
        ReportedSpan("toolchain", "other", 0.5, 0.75, True),
        ReportedSpan("fetch", "m", 0.2, 0.4, False),
        ReportedSpan("toolchain", "third", 2.0, 3.0, False),
    ),
)

EVENTS: list[dict[str, Any]] = json.loads(json.dumps(build_trace_document(RECORD)))["traceEvents"]


def slices() -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in EVENTS:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def test_every_event_matches_the_trace_format() -> None:
    for event in EVENTS:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        match event["ph"]:
            case "X":
                assert isinstance(event["ts"], int)
                assert event["ts"] >= 0
                assert event["dur"] >= 0
            case "M":
                assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            case "C":
                assert all(isinstance(value, int) for value in event["args"].values())
            case other:
                raise AssertionError(other)


def test_slices_of_one_thread_are_nested_or_disjoint() -> None:
    for found in slices().values():
        stack: list[int] = []
        last = 0
        for event in found:
            assert event["ts"] >= last, "in order"
            last = event["ts"]
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            end = event["ts"] + event["dur"]
            assert not stack or end <= stack[-1]
            stack.append(end)


def test_each_step_is_on_its_machine_and_slot() -> None:
    names = {
        (event["pid"], event["tid"], event["name"]): event["args"]["name"] for event in EVENTS if event["name"].endswith("_name")
    }
    assert (names[1, 0, "process_name"], names[2, 0, "process_name"]) == ("here", "far")
    assert (names[1, 1, "thread_name"], names[2, 2, "thread_name"]) == ("slot 1", "slot 2")
    found = {place: [event["name"] for event in events] for place, events in slices().items()}
    assert found[1, 1] == [SHARE, ONE, "staging", "compiling", TWO, "compiling"]
    assert found[2, 2] == [OTHER]
    assert found[1, 2] == [LOST]
    assert "emit:g/npu/directory" not in {name for events in found.values() for name in events}


def test_other_work_has_its_own_threads() -> None:
    named = {event["tid"]: event["args"]["name"] for event in EVENTS if event["name"] == "thread_name" and event["tid"] >= 10_000}
    beside = {tid: [event["name"] for event in events] for (_, tid), events in slices().items() if tid >= 10_000}
    assert sorted((named[tid], names) for tid, names in beside.items()) == [
        ("model downloads", ["m"]),
        ("toolchains", ["other"]),
        ("toolchains", ["qnn", "third"]),
    ]


def test_a_slice_has_its_reasons_and_errors() -> None:
    arguments = {event["name"]: event["args"] for event in EVENTS if event["ph"] == "X"}
    assert arguments[SHARE] == {
        "outcome": "built",
        "was": "new",
        "because": ["it was never built"],
        "size": 5,
        "peak_memory": 1000,
    }
    assert arguments[LOST] == {"outcome": "failed", "was": "new", "peak_memory": 50, "errors": ["no [EPB401]"]}


def test_memory_is_summed_over_all_steps_of_a_machine() -> None:
    found = [(event["pid"], event["ts"], event["args"]["bytes"]) for event in EVENTS if event["ph"] == "C"]
    assert found == [
        (1, 1_000_000, 1000),
        (1, 8_500_000, 1050),
        (1, 9_000_000, 50),
        (1, 9_500_000, 0),
        (2, 2_000_000, 300),
        (2, 8_000_000, 0),
    ]


def test_a_build_with_nothing_to_do_has_an_empty_trace() -> None:
    assert build_trace_document(None) == {"displayTimeUnit": "ms", "traceEvents": []}

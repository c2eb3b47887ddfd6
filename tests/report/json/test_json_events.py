"""JSON output: one complete document per line, with the promised keys, in any environment."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.errors import Argument, Problem
from epbuild.engine.events import Event, StepFailed, StepFinished, StepsCurrent
from epbuild.plan.steps import Emission, Part, Plan, Step
from epbuild.recipe.model import Defaults
from epbuild.report.json.build import build_plan_document
from epbuild.report.json.documents import build_problem_view, format_json, print_json
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import Fetching
from epbuild.survey.action_status import ActionStatus
from epbuild.survey.orphans import Orphan
from epbuild.survey.status import Survey
from tests.report.events import ADDRESS, COMPILE, EVENTS, FAILURE, WARNING, WHERE


@pytest.fixture(autouse=True)
def no_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def write_events(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    with make_reporter(json=True) as listener:
        for event in EVENTS:
            listener.report(event)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stream = io.StringIO()
    write_events(stream, monkeypatch)
    return stream.getvalue().splitlines()


def test_every_event_type_has_an_example_here() -> None:
    assert {type(event) for event in EVENTS} == set(Event.__subclasses__())


def test_every_event_is_one_json_line_with_name_time_and_format(lines: list[str]) -> None:
    documents = [json.loads(line) for line in lines]
    assert [document["event"] for document in documents] == [
        "warned",
        "fetching",
        "fetched",
        "toolchain_started",
        "toolchain_ready",
        "run_started",
        "step_started",
        "step_output",
        "step_output",
        "step_finished",
        "step_finished",
        "step_failed",
        "output_removed",
        "output_compared",
        "sharing_saved",
        "model_covered",
        "comparison_started",
        "step_compared",
        "step_compared",
        "comparison_finished",
        "toolchain_locked",
        "results_shared",
        "remote_cache_used",
        "toolchain_installing",
        "toolchain_failed",
        "noted",
        "hashing",
        "hashed",
        "step_advanced",
        "disk_needed",
        "watching",
        "files_changed",
        "step_finished",
        "step_finished",
        "run_finished",
    ]
    assert {document["format"] for document in documents} == {1}
    assert all(isinstance(document["time"], float) for document in documents)


def test_every_event_of_a_step_names_the_step(lines: list[str]) -> None:
    documents = [json.loads(line) for line in lines]
    of_steps = [document for document in documents if document["event"].startswith("step_")]
    kinds = [document["step"].split(":")[0] for document in of_steps]
    assert kinds == ["compile"] * 4 + ["emit", "compile", "share", "compile", "compile", "emit", "emit"]


def test_a_finished_step_has_its_outcome_duration_and_size(lines: list[str]) -> None:
    document = json.loads(lines[9])
    del document["time"]
    assert document == {
        "event": "step_finished",
        "format": 1,
        "step": COMPILE,
        "outcome": "built",
        "seconds": 7.25,
        "note": "1 EPContext node",
        "size": 268_700_000,
        "progress": {"done": 1, "total": 3, "seconds_left": 80.0},
        "from": None,
        "machine": None,
        "memory": None,
    }


def test_current_steps_reported_together_are_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1795439134.6634)
    steps = ["emit:g/t/directory", 'emit:"→\\\t/\0"', "\0", ""]
    written = []
    for events in ([StepsCurrent(tuple(steps))], [StepFinished(step, "current", 0.0) for step in steps]):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        for event in events:
            make_reporter(json=True).report(event)
        written.append(stream.getvalue())
    assert written[0] == written[1]
    assert [json.loads(line)["step"] for line in written[0].splitlines()] == steps


def test_every_end_of_a_pending_step_has_the_progress_of_the_build(lines: list[str]) -> None:
    documents = [json.loads(line) for line in lines]
    told = {
        document["event"]: document["progress"] for document in documents if document["event"] in ("step_failed", "step_compared")
    }
    assert told == {
        "step_failed": {"done": 2, "total": 3, "seconds_left": 0.0},
        "step_compared": {"done": 2, "total": 2, "seconds_left": 0.0},
    }
    assert [document["progress"] for document in documents if document.get("outcome") == "current"] == [None] * 3
    started = next(document for document in documents if document["event"] == "run_started")
    assert (started["todo"], started["seconds_left"], started["keep_going"]) == (3, 90.0, False)


def test_progress_output_of_an_ep_is_marked_as_status(lines: list[str]) -> None:
    said = [json.loads(line) for line in lines if json.loads(line)["event"] == "step_output"]
    assert [document["status"] for document in said] == [True, False]


def test_a_fetched_model_has_its_address_and_progress(lines: list[str]) -> None:
    arriving, here = (json.loads(line) for line in lines[1:3])
    del arriving["time"], here["time"]
    assert arriving == {
        "event": "fetching",
        "format": 1,
        "model": "x",
        "address": ADDRESS,
        "done": 400_000,
        "total": 1_600_000,
        "seconds_left": 9.0,
    }
    assert here == {"event": "fetched", "format": 1, "model": "x"}


def test_an_unknown_download_size_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with make_reporter(json=True) as listener:
        listener.report(Fetching("x", ADDRESS, 5, None))
    assert json.loads(stream.getvalue())["total"] is None


def test_a_rebuild_comparison_is_reported_byte_for_byte(lines: list[str]) -> None:
    [same, different] = [json.loads(line) for line in lines if json.loads(line)["event"] == "step_compared"]
    assert (same["verdict"], same["differences"], same["kept"]) == ("same", [], None)
    assert (different["verdict"], different["kept"]) == ("different", ".epbuild/rebuilt/x")
    assert [problem["code"] for problem in different["problems"]] == ["EPB650"]
    assert different["differences"] == [
        {
            "file": "x_qnn.bin",
            "old_size": 246_216,
            "new_size": 246_216,
            "offset": 233_880,
            "count": 6,
            "found": [
                {
                    "meaning": "timestamp",
                    "part": "member metadata",
                    "offset": 233_880,
                    "count": 6,
                    "runs": 6,
                    "old": "2026-11-22 00:11:01 UTC",
                    "new": "2026-11-22 00:11:05 UTC",
                }
            ],
        }
    ]


def test_a_failed_step_has_its_problems(lines: list[str]) -> None:
    [problem] = json.loads(lines[11])["problems"]
    assert problem == {"code": "EPB401", "message": FAILURE.message, "hint": FAILURE.hint, "step": COMPILE}


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_output_of_an_ep_is_written_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="")
    write_events(stream, monkeypatch)
    print_json({"text": "→ größe"})
    stream.flush()
    first, rest = raw.getvalue().decode(encoding).split("{\n", 1)
    assert json.loads(first.splitlines()[7])["text"] == "Processing graph → 50%"
    assert json.loads("{" + rest) == {"text": "→ größe"}


def test_a_line_break_in_a_message_does_not_break_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with make_reporter(json=True) as listener:
        listener.report(StepFailed(COMPILE, (Problem("EPB401", "one\ntwo\u2028three\x85"),)))
    [line] = stream.getvalue().splitlines()
    assert json.loads(line)["problems"][0]["message"] == "one\ntwo\u2028three\x85"


@pytest.mark.parametrize(
    ("problem", "place"),
    [
        (WARNING, {"file": "epbuild.yaml", "line": 12, "column": 5}),
        (FAILURE, {"step": COMPILE}),
        (Problem("EPB100", "no recipe", Path("b.yaml")), {"path": "b.yaml"}),
        (Problem("EPB106", "no variable", Argument("--set vars.a=b")), {"argument": "--set vars.a=b"}),
        (Problem("EPB501", "lost"), {}),
    ],
)
def test_a_problem_has_its_location_in_separate_keys(problem: Problem, place: dict[str, Any]) -> None:
    document = json.loads(format_json(build_problem_view(problem)))
    assert {key: document.pop(key) for key in place} == place
    assert document == {"code": problem.code, "message": problem.message, "hint": problem.hint}


def test_the_plan_as_json_keeps_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = None
    steps = (
        Step("compile:g/t/m", "compile", (), "compile:g/t/m"),
        Step("emit:g/t/directory", "emit", ("compile:g/t/m",), "emit"),
    )
    binaries = {"m": {"QNNExecutionProvider": "m.bin", "OpenVINOExecutionProvider": "m.xml"}}
    part = Part("g", target, "", ("compile:g/t/m",), {"m": "m.onnx"}, binaries)
    emission = Emission("emit", "directory", None, Path("dist"), (part,), WHERE)
    found = Survey(
        Plan(steps, {"emit": emission}, (WARNING,), defaults=Defaults(toolchains={"qnn": ("onnxruntime==1.31.1",)})),
        {
            "compile:g/t/m": ActionStatus("out of date", ("model m changed: 1 -> 2",), "ab" * 32),
            "emit": ActionStatus("new", ("needs compile:g/t/m",)),
        },
        ("compile:g/t/m", "emit"),
        (Orphan("emit:g/t/old", Path("dist/old"), {"m.onnx": {"digest": "ab" * 32, "size": 1}}),),
    )
    assert json.loads(format_json(build_plan_document("epbuild.yaml", found))) == {
        "format": 1,
        "recipe": "epbuild.yaml",
        "steps": [
            {
                "id": "compile:g/t/m",
                "kind": "compile",
                "state": "out of date",
                "remote": False,
                "reasons": ["model m changed: 1 -> 2"],
                "key": "ab" * 32,
                "needs": [],
                "outputs": [],
            },
            {
                "id": "emit:g/t/directory",
                "kind": "emit",
                "state": "new",
                "remote": False,
                "reasons": ["needs compile:g/t/m"],
                "key": None,
                "needs": ["compile:g/t/m"],
                "outputs": ["dist/m.onnx", "dist/m.bin", "dist/m.xml"],
            },
        ],
        "defaults": {"name": None, "toolchains": {"qnn": ["onnxruntime==1.31.1"]}, "groups": [], "output": None},
        "orphans": [{"step": "emit:g/t/old", "directory": "dist/old"}],
        "warnings": [json.loads(format_json(build_problem_view(WARNING)))],
    }

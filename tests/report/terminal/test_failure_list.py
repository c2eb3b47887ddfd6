"""Failures at the end of a build with `--keep-going`: each reason once, with its steps, and the built outputs."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import pytest

from epbuild.core.errors import Problem, StepId
from epbuild.engine.events import Completion, Event, RunFinished, RunStarted, StepFailed, StepFinished
from epbuild.publish.sizes import OutputCompared
from epbuild.report.terminal.failures import group_steps
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import StepCompared

NOTHING = "Unable to compile any nodes. Check that the session EPs support compilation"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def shown(monkeypatch: pytest.MonkeyPatch, *events: Event, stderr: io.StringIO | None = None) -> list[str]:
    """Return the lines on standard output of a build with these events."""
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr or io.StringIO())
    with make_reporter(json=False) as listener:
        for event in events:
            listener.report(event)
    return stdout.getvalue().splitlines()


def compile_failure(model: str, soc: str, reason: str = NOTHING, code: str = "EPB401") -> StepFailed:
    step = f"compile:g/{soc}/{model}"
    message = f"compiling '{model}' for {soc} failed: {reason}."
    return StepFailed(step, (Problem(code, message, StepId(step), f"See the whole log: {model}.log.", f"{reason}."),))


def below_heading(lines: Iterable[str]) -> list[str]:
    found = list(lines)
    start = next(number for number, line in enumerate(found) if line.startswith("Failed: "))
    return found[start : found.index("", start)]


def test_each_reason_is_listed_once_with_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(
        monkeypatch,
        RunStarted("r", 9, 9, keep_going=True),
        compile_failure("a", "x"),
        compile_failure("b", "x", "No such SoC"),
        compile_failure("a", "y"),
        compile_failure("c", "x", NOTHING, "EPB402"),
        RunFinished(1, 3.0, 0, 0, 0, 4, 5),
    )
    assert below_heading(lines) == [
        "Failed: 4 steps, for 3 reasons",
        "Unable to compile any nodes. Check that the session EPs support compilation.",
        "  [EPB401]",
        "  See the whole log: a.log.",
        "  compile:g/*/a for 2 targets: x, y",
        "No such SoC. [EPB401]",
        "  See the whole log: b.log.",
        "  compile:g/x/b",
        "Unable to compile any nodes. Check that the session EPs support compilation.",
        "  [EPB402]",
        "  See the whole log: c.log.",
        "  compile:g/x/c",
    ]
    assert lines[-2:] == ["", "4 failed, 5 skipped (3.00 s)"]


def test_steps_of_a_reason_are_grouped_by_what_differs() -> None:
    prepared = [f"prepare:{model}/1-quantize" for model in ("det", "cls")]
    assert [*group_steps([*prepared, "prepare:det/2-opset"])] == [
        "prepare:*/1-quantize for 2 models: det, cls",
        "prepare:det/2-opset",
    ]
    assert [*group_steps(["verify:g/x", "verify:g/y"])] == ["verify:g/* for 2 targets: x, y"]
    assert [*group_steps(["emit:g/x/zip", "emit:g/y/zip"])] == ["emit:g/*/zip for 2 targets: x, y"]
    assert [*group_steps(["emit:g/zip", "emit:g/tar", "emit:zip"])] == ["emit:g/zip", "emit:g/tar", "emit:zip"]


def test_problems_that_differ_only_in_model_names_are_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmet(group: str, model: str, nodes: int) -> StepFailed:
        message = f"the model '{model}' became {nodes} EPContext nodes; the recipe expects 7"
        return StepFailed(f"compile:{group}/npu/{model}", (Problem("EPB603", message, StepId(f"compile:{group}/npu/{model}")),))

    lines = shown(
        monkeypatch,
        RunStarted("r", 3, 3, keep_going=True),
        unmet("g", "a", 1),
        unmet("h", "b", 1),
        unmet("h", "c", 2),
        RunFinished(1, 3.0, 0, 0, 0, 3, 0),
    )
    assert below_heading(lines) == [
        "Failed: 3 steps, for 2 reasons",
        "The model '...' became 1 EPContext nodes; the recipe expects 7. [EPB603]",
        "  compile:g/npu/a",
        "  compile:h/npu/b",
        "The model 'c' became 2 EPContext nodes; the recipe expects 7. [EPB603]",
        "  compile:h/npu/c",
    ]


def test_a_long_list_of_failed_steps_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [compile_failure(f"m{number}", "x") for number in range(178)]
    lines = below_heading(
        shown(monkeypatch, RunStarted("r", 178, 178, keep_going=True), *failures, RunFinished(1, 3.0, 0, 0, 0, 178, 0))
    )
    assert lines[0] == "Failed: 178 steps, for 1 reason"
    assert lines[-1] == "  and 158 more lines of steps"
    assert len(lines) == 25


def test_a_failure_for_many_targets_is_one_line_now_and_one_entry_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [compile_failure("yolo", f"phone-{number}") for number in range(22)]
    stderr = io.StringIO()
    lines = shown(
        monkeypatch, RunStarted("r", 22, 22, keep_going=True), *failures, RunFinished(1, 3.0, 0, 0, 0, 22, 0), stderr=stderr
    )
    assert below_heading(lines) == [
        "Failed: 22 steps, for 1 reason",
        "Unable to compile any nodes. Check that the session EPs support compilation.",
        "  [EPB401]",
        "  See the whole log: yolo.log.",
        "  compile:g/*/yolo for 22 targets: phone-0, phone-1, phone-2, phone-3, phone-4,",
        "    phone-5 and 16 more",
    ]
    said = "compile:g/phone-0/yolo: error: compiling 'yolo' for phone-0 failed: Unable to compile any nodes. [EPB401]"
    assert stderr.getvalue().splitlines()[0] == said
    assert len(stderr.getvalue().splitlines()) == 22


def test_failures_are_listed_if_a_build_with_keep_going_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, RunStarted("r", 9, 9, keep_going=True), compile_failure("a", "x"))
    assert below_heading([*lines, ""])[0] == "Failed: 1 step, for 1 reason"


@pytest.mark.parametrize(
    ("keep_going", "failures", "listed"),
    [(True, ["a"], True), (False, ["a"], False), (False, ["a", "b"], True), (True, [], False)],
    ids=["-k", "the failure that ended the build", "several that ran at once", "none"],
)
def test_failures_are_listed_unless_one_failure_ended_the_build(
    monkeypatch: pytest.MonkeyPatch, keep_going: bool, failures: list[str], listed: bool
) -> None:
    events = [compile_failure(model, "x") for model in failures]
    end = RunFinished(1 if failures else 0, 3.0, 0, 0, 0, len(failures), 0)
    lines = shown(monkeypatch, RunStarted("r", 3, 3, keep_going=keep_going), *events, end)
    assert any(line.startswith("Failed: ") for line in lines) is listed


def test_a_differing_rebuild_is_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("EPB650", "the rebuilt x.bin differs: 6 of 10 bytes differ, the first at byte 3", StepId("g"))
    compared = StepCompared("compile:g/x/a", "different", 1.0, 1, 10, problems=(problem,), progress=Completion(1, 1))
    lines = shown(monkeypatch, RunStarted("r", 3, 3, keep_going=True), compared, RunFinished(1, 3.0, 0, 0, 3, 0, 0))
    assert below_heading(lines)[1:] == [
        "The rebuilt x.bin differs: 6 of 10 bytes differ, the first at byte 3. [EPB650]",
        "  compile:g/x/a",
    ]


@pytest.mark.parametrize("keep_going", [True, False])
def test_keep_going_lists_sizes_of_built_outputs(monkeypatch: pytest.MonkeyPatch, keep_going: bool) -> None:
    lines = shown(
        monkeypatch,
        RunStarted("r", 3, 3, keep_going=keep_going),
        compile_failure("a", "x"),
        StepFinished("compile:g/x/b", "built", 2.0),
        OutputCompared("emit:g/x/directory", "dist/x", None, 1500, ()),
        RunFinished(1, 3.0, 1, 0, 0, 1, 0),
    )
    assert ("Size: 1.5 kB in 1 new output." in lines) is keep_going


def test_under_github_actions_annotated_problems_are_not_printed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    events = [compile_failure("a", "x"), compile_failure("b", "x")]
    stderr = io.StringIO()
    end = RunFinished(1, 3.0, 0, 0, 0, 2, 0)
    lines = shown(monkeypatch, RunStarted("r", 3, 3, keep_going=True), *events, end, stderr=stderr)
    assert NOTHING not in "\n".join(lines)
    assert stderr.getvalue().count(NOTHING) == len(events)

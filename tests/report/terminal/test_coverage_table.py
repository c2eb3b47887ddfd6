"""Coverage of each model: a table that fits a terminal, with equal contents in Markdown and JSON."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from epbuild.core.errors import Problem, StepId
from epbuild.engine.events import Event, Progress, RunFinished, StepFailed, StepFinished
from epbuild.plan.result import FallbackNode
from epbuild.report.json.build import build_coverage_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.coverage import format_coverage, print_coverage, print_coverage_details, print_coverage_markdown
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import ModelCovered
from epbuild.verify.fallback import FallbackNodes

UNSUPPORTED = "Operators of type `MatMulInteger` are not supported by QNN EP"
WHOLE = ModelCovered("compile:zoo/a/yolo", "yolo", "a", "whole", 1, FallbackNodes("yolo", 0, ()), None, 6_700_000, 4.04)
PARTIAL = ModelCovered(
    "compile:zoo/a/t5",
    "t5",
    "a",
    "partial",
    18,
    FallbackNodes(
        "t5",
        3,
        (
            FallbackNode("m1", "MatMulInteger", UNSUPPORTED),
            FallbackNode("m2", "MatMulInteger", UNSUPPORTED),
            FallbackNode("", "If", None),
        ),
    ),
    None,
    50_400_000,
    25.5,
)
FAILED = ModelCovered("compile:zoo/a/vad", "vad", "a", "failed", reason="Node (If_0) Op (If) is wrong")
ROWS = [WHOLE, PARTIAL, FAILED]


def build(listener: Progress, *events: Event) -> None:
    for event in events:
        listener.report(event)


def for_target(row: ModelCovered, target: str) -> ModelCovered:
    return replace(row, target=target, step=row.step.replace("/a/", f"/{target}/"))


Screen = pytest.CaptureFixture[str]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, capsys: Screen) -> Screen:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return capsys


def test_a_matrix_has_a_line_for_each_model_and_reasons_below(screen: Screen) -> None:
    print_coverage([*ROWS, for_target(WHOLE, "b"), replace(for_target(PARTIAL, "b"), outcome="whole")])
    assert screen.readouterr().out == (
        "Coverage: 3 models for 2 targets: 3 whole, 1 partial, 1 failed\n"
        "      a           b\n"
        "yolo  whole       whole\n"
        "t5    3 fallback  whole\n"
        "vad   failed      -\n"
        "t5: 2 MatMulInteger and 1 If. Operators of type `MatMulInteger` are not\n"
        "  supported by QNN EP (2 nodes)\n"
        "vad for a: Node (If_0) Op (If) is wrong\n"
    )


def test_details_list_sizes_and_times(screen: Screen) -> None:
    print_coverage_details(ROWS)
    assert screen.readouterr().out == (
        "Coverage: 3 models for 1 target: 1 whole, 1 partial, 1 failed\n"
        "yolo  a                                                   whole   6.7 MB   4.0 s\n"
        "t5    a                                              3 fallback  50.4 MB  25.5 s\n"
        "vad   a                                                  failed\n"
        "t5: 2 MatMulInteger and 1 If. Operators of type `MatMulInteger` are not\n"
        "  supported by QNN EP (2 nodes)\n"
        "vad: Node (If_0) Op (If) is wrong\n"
    )


SOCS = [f"phone-SM8{number}50" for number in range(22)]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_matrix_of_many_targets_fits_the_terminal(screen: Screen, columns: int) -> None:
    equal = [for_target(row, soc) for row in ROWS for soc in SOCS]
    lines = [*format_coverage(equal, width=columns)]
    assert lines[1:5] == [
        "phone-  SM8050 +21",
        "yolo    whole",
        "t5      3 fallback",
        "vad     failed",
    ]
    outcomes = ("whole", "failed", "not built", "on the CPU", "failed verify")
    mixed = [
        replace(row, outcome=outcomes[(number * 7 + at) % 5], outside=None)
        for at, row in enumerate([WHOLE, replace(WHOLE, model="enc"), replace(WHOLE, model="cls")])
        for number, row in enumerate(for_target(row, soc) for soc in SOCS)
    ]
    mixed += [replace(for_target(FAILED, soc), outcome=outcomes[number % 4], reason=None) for number, soc in enumerate(SOCS)]
    assert max(map(len, format_coverage(mixed, width=columns))) <= columns


def test_few_targets_share_the_start_of_their_names_before_they_are_merged(screen: Screen) -> None:
    rows = [for_target(replace(WHOLE, model="a-model-with-a-long-name"), soc) for soc in SOCS[:4]]
    rows[0] = replace(rows[0], outcome="failed verify")
    print_coverage(rows)
    assert screen.readouterr().out.splitlines()[1:] == [
        "phone-                    SM8050         SM8150  SM8250  SM8350",
        "a-model-with-a-long-name  failed verify  whole   whole   whole",
    ]


def test_a_model_with_a_failed_verification_is_marked_once(screen: Screen) -> None:
    wrong = replace(PARTIAL, outcome="failed verify", reason="its numbers are wrong", verify="verify:zoo/a")
    print_coverage([WHOLE, wrong])
    found = screen.readouterr().out.splitlines()
    assert found[0] == "Coverage: 2 models for 1 target: 1 whole, 1 failed verify"
    assert found[3].split() == ["t5", "failed", "verify"]
    assert found[4].startswith("t5: its numbers are wrong. 2 MatMulInteger and 1 If.")
    assert len([*format_coverage([WHOLE, wrong], frozenset({"verify:zoo/a"}))]) == 4


def test_lines_fit_80_columns_unless_a_name_is_longer(screen: Screen) -> None:
    print_coverage([*ROWS, for_target(PARTIAL, "a-target-with-a-name-of-some-length-and-more-of-it")])
    assert max(map(len, screen.readouterr().out.splitlines())) <= 80


def test_equal_reasons_for_several_targets_are_shown_once(screen: Screen) -> None:
    print_coverage([PARTIAL, for_target(PARTIAL, "b")])
    lines = screen.readouterr().out.splitlines()
    assert sum("MatMulInteger" in line for line in lines) == 1


def test_accuracy_figures_have_a_column_if_any_exist(screen: Screen) -> None:
    print_coverage_details([replace(WHOLE, accuracy={"cosine": 0.999974, "snr_db": 41.4})])
    assert screen.readouterr().out.splitlines()[-1].endswith("  cosine 0.999974, 41 dB")


def test_json_has_every_node_by_operator_and_reason(screen: Screen) -> None:
    document = json.loads(format_json(build_coverage_document(ROWS)))
    assert document["format"] == 1
    assert [row["outcome"] for row in document["rows"]] == ["whole", "partial", "failed"]
    assert document["rows"][1] == {
        "model": "t5",
        "target": "a",
        "outcome": "partial",
        "ep_context_nodes": 18,
        "left": [
            {"operator": "MatMulInteger", "count": 2, "reason": UNSUPPORTED, "nodes": ["m1", "m2"]},
            {"operator": "If", "count": 1, "reason": None, "nodes": [""]},
        ],
        "reason": None,
        "size": 50_400_000,
        "seconds": 25.5,
        "accuracy": None,
    }
    assert document["rows"][2]["reason"] == "Node (If_0) Op (If) is wrong"


def test_markdown_has_a_table(screen: Screen) -> None:
    print_coverage_markdown(ROWS)
    lines = screen.readouterr().out.splitlines()
    assert "| `yolo` | `a` | whole | 6.7 MB | 4.0 s |  |" in lines
    assert "3 models for 1 target: 1 whole, 1 partial, 1 failed." in lines


def test_a_build_of_several_models_ends_with_the_coverage_table(screen: Screen) -> None:
    problem = Problem("EPB401", f"compiling 'vad' failed: {FAILED.reason}.", StepId(FAILED.step), None, f"{FAILED.reason}.")
    with make_reporter(json=False) as listener:
        build(listener, StepFailed(FAILED.step, (problem,)), *ROWS, RunFinished(1, 3.0, 1, 0, 0, 1, 0))
    lines = screen.readouterr().out.splitlines()
    begin = lines.index("Coverage: 3 models for 1 target: 1 whole, 1 partial, 1 failed")
    assert lines[begin + 2].startswith("yolo  whole")
    assert [line for line in lines[begin:] if "If_0" in line] == []


def test_the_coverage_of_a_part_of_the_recipe_says_so(screen: Screen) -> None:
    with make_reporter(json=False) as listener:
        build(listener, StepFinished("compile:zoo/a/old", "current", 0.0), *ROWS, RunFinished(1, 3.0, 1, 0, 5, 1, 0))
    assert "Coverage in this build: 3 models for 1 target" in screen.readouterr().out


def test_a_build_of_one_model_has_no_table(screen: Screen) -> None:
    with make_reporter(json=False) as listener:
        build(listener, WHOLE, RunFinished(0, 3.0, 1, 0, 0, 0, 0))
    assert "Coverage" not in screen.readouterr().out

"""Problems on standard error with their position, and tables that fit a terminal of 80 columns."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from epbuild.core.errors import Argument, Location, Position, Problem, StepId
from epbuild.plan.steps import Plan, Step
from epbuild.recipe.model import NO_DEFAULTS, Defaults
from epbuild.report.terminal.plan import print_defaults, print_plan
from epbuild.report.terminal.problems import ProblemWriter, print_problems
from epbuild.survey.action_status import ActionStatus, StepState
from epbuild.survey.status import Survey
from tests.report.events import Terminal

HERE = Position("recipes/epbuild.yaml", 12, 5)
PROBLEM = Problem("EPB110", "there is no target 'npuu'", HERE, "Did you mean 'npu'?")
LINE = "recipes/epbuild.yaml:12:5: error: there is no target 'npuu'. Did you mean 'npu'? [EPB110]"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def told(monkeypatch: pytest.MonkeyPatch, problem: Problem, stream: io.StringIO | None = None, **options: Any) -> str:
    stream = stream or io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    print_problems([problem], **options)
    return stream.getvalue()


def test_a_problem_is_one_line_with_a_position_that_editors_recognize(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, PROBLEM) == f"{LINE}\n"


@pytest.mark.parametrize(
    ("where", "place"),
    [
        (None, "epbuild"),
        (StepId("compile:g/t/m"), "compile:g/t/m"),
        (Path("a.yaml"), "a.yaml"),
        (Argument("--set vars.a=b"), "--set vars.a=b"),
        (Position("a.yaml", 1, 2), "a.yaml:1:2"),
    ],
)
def test_a_problem_has_its_location_as_precisely_as_known(
    monkeypatch: pytest.MonkeyPatch, where: Location | None, place: str
) -> None:
    assert told(monkeypatch, Problem("EPB501", "lost", where), kind="warning") == f"{place}: warning: lost. [EPB501]\n"


def test_problems_go_to_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems([PROBLEM, PROBLEM])
    assert capsys.readouterr() == ("", f"{LINE}\n{LINE}\n")


@pytest.mark.parametrize(
    ("stream", "environment", "has_colors"),
    [(Terminal, {}, True), (Terminal, {"NO_COLOR": "1"}, False), (Terminal, {"TERM": "dumb"}, False), (io.StringIO, {}, False)],
)
def test_colors_are_used_only_on_terminals_that_support_them(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], environment: dict[str, str], has_colors: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b" in told(monkeypatch, PROBLEM, stream())) is has_colors


@pytest.mark.parametrize(
    ("problem", "annotation"),
    [
        (PROBLEM, f"::error file=recipes/epbuild.yaml,line=12,col=5::{PROBLEM.text} [EPB110]"),
        (Problem("EPB401", "100% wrong\r\nreally"), "::error::100%25 wrong%0D%0Areally. [EPB401]"),
        (
            Problem("EPB110", "x", Position("C:/a, b%.yaml", 1, 2)),
            "::error file=C%3A/a%2C b%25.yaml,line=1,col=2::x. [EPB110]",
        ),
    ],
)
def test_under_github_actions_a_problem_is_an_annotation_at_the_line_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, annotation: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert told(monkeypatch, problem).splitlines()[-1] == annotation


def test_the_annotation_of_a_failed_step_is_at_its_definition_with_a_short_title(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    step = StepId(f"compile:decoder/{'snapdragon-' * 10}SM8750/prefill")
    ProblemWriter().write([Problem("EPB401", "it failed", step)], definition=HERE)
    command, _, text = stream.getvalue().strip().removeprefix("::error ").partition("::")
    properties = dict(part.split("=") for part in command.split(","))
    assert (properties["file"], properties["line"], text) == ("recipes/epbuild.yaml", "12", "it failed. [EPB401]")
    assert len(properties["title"].replace("%3A", ":")) <= 80
    assert properties["title"].endswith("SM8750/prefill")


def survey(*steps: tuple[str, StepState, tuple[str, ...]]) -> Survey:
    """Return a survey of compile steps with these ids, states and reasons."""
    return Survey(
        Plan(tuple(Step(ident, "compile", (), ident) for ident, _, _ in steps), {}),
        {ident: ActionStatus(state, reasons) for ident, state, reasons in steps},
        tuple(ident for ident, state, _ in steps if state != "current"),
    )


MIXED = survey(
    ("compile:decoder/snapdragon-SC8380XP/prefill", "out of date", ("model prefill changed: 0123abcd -> 4567cdef",)),
    ("share:decoder/snapdragon-SC8380XP", "current", ()),
    ("emit:decoder/snapdragon-SC8380XP/directory", "restorable", ("[bold]_ctx.onnx is missing",)),
    ("compile:classifier/snapdragon-SM8750/classifier", "new", ()),
)


def shown(capsys: pytest.CaptureFixture[str], found: Survey, **options: bool) -> list[str]:
    print_plan(found, **options)
    out, error = capsys.readouterr()
    assert error == ""
    return out.splitlines()


def test_each_default_of_a_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    packages = ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0", "a-package-of-a-long-name==1.2.3")
    print_defaults(
        Defaults("shop", {"qnn": packages, "cpu": ("onnxruntime==1.31.1",)}, ("a", "b", "c", "d"), "dist/shop/${group}/${target}")
    )
    assert capsys.readouterr().out.splitlines() == [
        "defaults: name shop",
        "          toolchain qnn (onnxruntime==1.31.1, onnxruntime-qnn==2.7.0,",
        "            a-package-of-a-long-name==1.2.3)",
        "          toolchain cpu (onnxruntime==1.31.1)",
        "          a group for each of a, b, c and 1 more",
        "          outputs in dist/shop/<group>/<target>",
    ]
    print_defaults(Defaults(groups=("det",)))
    assert capsys.readouterr().out.splitlines() == ["defaults: a group for det"]
    print_defaults(NO_DEFAULTS)
    assert capsys.readouterr().out == ""


def test_the_whole_plan_shows_every_step_with_its_state_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, MIXED, every_step=True) == [
        "out of date  compile:decoder/snapdragon-SC8380XP/prefill",
        "               model prefill changed: 0123abcd -> 4567cdef",
        "current      share:decoder/snapdragon-SC8380XP",
        "restorable   emit:decoder/snapdragon-SC8380XP/directory",
        "               [bold]_ctx.onnx is missing",
        "new          compile:classifier/snapdragon-SM8750/classifier",
        "4 steps: 1 current, 1 restorable, 1 out of date, 1 new",
    ]


def test_a_plan_counts_current_steps_and_lists_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, MIXED)
    assert not any(line.startswith("current") for line in lines)
    assert lines[-1] == "4 steps: 1 current, 1 restorable, 1 out of date, 1 new"
    assert len(lines) == 6


@pytest.mark.parametrize(("number", "text"), [(1, "1 step is"), (3, "3 steps are")])
def test_a_plan_says_when_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str], number: int, text: str) -> None:
    steps: list[tuple[str, StepState, tuple[str, ...]]] = [(f"compile:g/t/{n}", "current", ()) for n in range(number)]
    assert shown(capsys, survey(*steps)) == [f"Nothing to do: {text} current."]


def test_a_long_list_of_reasons_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, survey(("compile:g/t/m", "out of date", tuple(f"package p{n} changed: 1 -> 2" for n in range(40)))))
    assert len(lines) == 9
    assert lines[-2].strip() == "and 34 more"


def test_the_plan_of_usual_names_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, shown(capsys, MIXED))) <= 80


def test_long_lines_of_a_plan_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    ident = f"compile:decoder/{'x' * 100}/prefill"
    assert shown(capsys, survey((ident, "new", ())))[0] == f"new  {ident}"


def test_a_plan_in_a_pipe_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in "".join(shown(capsys, MIXED))

"""Many warnings: three of each text are shown, with the number of the rest, and each file is read once."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epbuild import __main__ as process
from epbuild.core.errors import Position, Problem, ProblemRecord
from epbuild.engine.events import RunStarted, StepFailed, Warned
from epbuild.report.terminal.problems import print_problems, print_warnings
from epbuild.report.terminal.progress import make_reporter
from tests.support.commands import RECIPE, epbuild
from tests.support.fake_builds import source_model

MANY = 200


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("epbuild.yaml").write_text("".join(f"line {number}\n" for number in range(1, MANY + 1)), encoding="utf-8")


def problems(count: int, code: str = "EPB233") -> list[Problem]:
    return [Problem(code, f"number {line}", Position("epbuild.yaml", line, 1)) for line in range(1, count + 1)]


def shown(monkeypatch: pytest.MonkeyPatch, show: Callable[[], object]) -> list[str]:
    """Return the lines on standard error that are not excerpts of files."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    show()
    return [line for line in stream.getvalue().splitlines() if not line.startswith("  ")]


def report(*, all_warnings: bool, ends: bool = True) -> None:
    with make_reporter(json=False, all_warnings=all_warnings) as listener:
        for problem in problems(MANY):
            listener.report(Warned(problem))
        if ends:
            listener.report(RunStarted("r", 1, 1))
        for problem in problems(MANY, "EPB401"):
            listener.report(StepFailed("compile:a/b/c", (problem,)))


THREE = [f"epbuild.yaml:{line}:1: warning: number {line}. [EPB233]" for line in (1, 2, 3)]
REST = f"epbuild: {MANY - 3} more warnings like these [EPB233]; --all-warnings shows all {MANY}"


def test_a_list_shows_three_of_each_code_and_the_number_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, lambda: print_warnings([*problems(3, "EPB100"), *problems(MANY)], all_warnings=False))
    assert [line for line in lines if "EPB233" in line] == [*THREE, REST]
    assert sum("EPB100" in line for line in lines) == 3
    lines = shown(monkeypatch, lambda: print_warnings(problems(4), "note", all_warnings=False))
    assert lines[-1] == "epbuild: 1 more note like these [EPB233]; --all-warnings shows all 4"


def test_different_texts_of_one_code_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        Problem("EPB233", f"{word} '{name}'", Position("epbuild.yaml", 9, 1)) for word in ("slow", "large") for name in "abcd"
    ]
    lines = shown(monkeypatch, lambda: print_warnings([*problems(MANY), *others], all_warnings=False))
    assert [sum(word in line for line in lines) for word in ("number", "slow", "large")] == [3, 3, 3]
    assert lines[-1] == f"epbuild: {MANY - 3 + 2} more warnings like these [EPB233]; --all-warnings shows all {MANY + 8}"


def test_all_warnings_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(shown(monkeypatch, lambda: print_warnings(problems(MANY), all_warnings=True))) == MANY


@pytest.mark.parametrize("ends", [True, False])
def test_a_build_shows_three_of_each_code_before_its_steps(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    lines = shown(monkeypatch, lambda: report(all_warnings=False, ends=ends))
    rest = lines.pop(3 if ends else -1)
    assert (lines[:3], rest) == (THREE, REST)
    assert sum("EPB401" in line for line in lines) == MANY, "failures are all shown"
    assert len(shown(monkeypatch, lambda: report(all_warnings=True))) == 2 * MANY


@pytest.mark.parametrize(
    "show",
    [
        lambda: print_problems(problems(MANY)),
        lambda: print_warnings(problems(MANY), all_warnings=True),
        lambda: report(all_warnings=True),
        lambda: process._warn(msgspec.to_builtins([ProblemRecord.of(problem) for problem in problems(MANY)])),
    ],
    ids=["errors", "warnings", "build", "snapshot"],
)
def test_a_file_is_read_once_for_all_its_problems(monkeypatch: pytest.MonkeyPatch, show: Callable[[], None]) -> None:
    opened = Counter[str]()
    really_open = Path.open

    def count(path: Path, *arguments: Any, **options: Any) -> Any:
        opened[path.name] += 1
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", count)
    assert len(shown(monkeypatch, show)) >= 4
    assert opened == {"epbuild.yaml": 1}


@pytest.mark.gate
def test_commands_show_three_warnings_and_json_has_all(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(5)]
    for number, name in enumerate(names):
        (tmp_path / f"{name}.onnx").write_bytes(source_model(number, common=number + 0.5))
    models = "".join(f"  {name}: {name}.onnx\n" for name in names)
    recipe = RECIPE.replace("  relu: relu.onnx\n", models).replace("[relu]", f"[{', '.join(names)}]\n    share_weights: true")
    (tmp_path / "epbuild.yaml").write_text(recipe, encoding="utf-8")
    for command in (["validate"], ["plan"], ["graph", "--format", "dot"]):
        few, every = epbuild(tmp_path, *command), epbuild(tmp_path, *command, "--all-warnings")
        assert (few.returncode, few.stderr.count("EPB233"), every.stderr.count("EPB233")) == (0, 4, 5), few.stderr
        assert "epbuild: 2 more warnings like these [EPB233]; --all-warnings shows all 5\n" in few.stderr
    for command in (["validate", "--json"], ["plan", "--json"]):
        assert [one["code"] for one in json.loads(epbuild(tmp_path, *command).stdout)["warnings"]] == ["EPB233"] * 5

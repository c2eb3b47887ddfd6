"""Steps from a file: the format of a line, and the position of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from epbuild.cli.names import expand_step_files
from epbuild.core.errors import PlanError, Position
from tests.support.commands import RECIPE, epbuild, write_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(content: bytes) -> tuple[tuple[str, ...], Mapping[str, Position]]:
    Path("steps.txt").write_bytes(content)
    return expand_step_files(["@steps.txt"])


@pytest.mark.parametrize(
    "content",
    [
        b"compile:a/b/c\nemit:*\n",
        b"\xef\xbb\xbfcompile:a/b/c\r\nemit:*",
        b"# all\n\n  compile:a/b/c  # the first\n\temit:*\ncompile:a/b/c\n",
    ],
    ids=["plain", "as Windows writes it", "with comments, blanks and repetitions"],
)
def test_each_line_is_a_step_in_any_encoding_and_line_ending(content: bytes) -> None:
    assert read(content)[0] == ("compile:a/b/c", "emit:*")


def test_a_step_has_its_line_and_column() -> None:
    assert read("# é\n   emit:é # x\n".encode())[1] == {"emit:é": Position("steps.txt", 2, 4)}
    assert expand_step_files(["a:b", "@steps.txt", "c:d"])[0] == ("a:b", "emit:é", "c:d")


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        (b"", 1, 1, "contains no steps"),
        (b"# nothing\n\n", 1, 1, "contains no steps"),
        (b"emit:a\nemit:\xe9\n", 2, 6, "is not UTF-8"),
        ("emit:a\n".encode("utf-16"), 1, 1, "is not UTF-8"),
    ],
)
def test_an_invalid_steps_file_is_refused_and_never_selects_all_steps(
    content: bytes, line: int, column: int, message: str
) -> None:
    with pytest.raises(PlanError) as error:
        read(content)
    [problem] = error.value.problems
    assert (problem.code, problem.where) == ("EPB278", Position("steps.txt", line, column))
    assert message in problem.message


@pytest.mark.parametrize("name", ["@", "@nowhere.txt", "@.", "@a\0b"])
def test_a_file_that_cannot_be_read_is_named(name: str) -> None:
    with pytest.raises(PlanError, match="EPB278"):
        expand_step_files([name])


@pytest.mark.slow
def test_commands_read_steps_from_a_file_and_locate_unknown_steps(here: Path) -> None:
    (here / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    write_model(here / "relu.onnx")
    (here / "steps.txt").write_text("compile:*\n", encoding="utf-8")
    plan = epbuild(here, "plan", "@steps.txt", "--json")
    assert [step["id"] for step in json.loads(plan.stdout)["steps"]] == ["compile:main/phone/relu"]
    assert epbuild(here, "run", "epbuild.yaml", "@steps.txt", "--check").returncode == 1
    (here / "steps.txt").write_text("compile:*\n\nemit:nothing/*\n", encoding="utf-8")
    for command in ("plan", "run", "explain", "clean"):
        done = epbuild(here, command, "@steps.txt")
        assert (done.returncode, done.stdout) == (2, "")
        assert "steps.txt:3:1: error: no step matches 'emit:nothing/*'" in done.stderr

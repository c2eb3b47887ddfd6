"""`epbuild schema`: JSON Schemas to a pipe, or atomically into a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epbuild.commands.schema import SCHEMAS, build_editor_schema
from tests.support.commands import epbuild

pytestmark = pytest.mark.slow  # each test starts the real command


@pytest.mark.parametrize("arguments", [(), *((name,) for name in SCHEMAS)], ids=str)
def test_schema_prints_only_json(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = epbuild(tmp_path, "schema", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == build_editor_schema(*arguments or ("recipe",))


def test_a_schema_file_is_replaced_without_leftovers(tmp_path: Path) -> None:
    (tmp_path / "epbuild.schema.json").write_text("old", encoding="utf-8")
    done = epbuild(tmp_path, "schema", "--output", "epbuild.schema.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "epbuild.schema.json").read_text(encoding="utf-8")) == build_editor_schema("recipe")
    assert [path.name for path in tmp_path.iterdir()] == ["epbuild.schema.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["recipes"], 2, "expected one of 'recipe', 'manifest', 'catalog', 'report', 'doctor', found 'recipes'"),
        (["--output", "."], 2, "is a directory"),
        (["--output", "missing/schema.json"], 3, "missing"),
    ],
)
def test_a_schema_error_is_one_line(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = epbuild(tmp_path, "schema", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    [line] = done.stderr.splitlines()
    assert words in line

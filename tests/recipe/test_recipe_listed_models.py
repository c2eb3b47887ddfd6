"""Models that a recipe lists by paths and patterns, and not by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import Position
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.names import name_problem
from tests.recipe.texts import load_text, problems_of
from tests.support.recipe_texts import codes_and_places, places

HEAD = "epbuild: 1\nname: shop\ntargets: {phone: {ep: qnn, soc: SM8750}}\n"
FILES = ("models/det.onnx", "models/det.onnx.data", "models/cls.onnx", "models/.det.onnx", "models/more/seg v2.onnx", "big.onnx")

not_on_windows = pytest.mark.skipif(os.name == "nt", reason="Windows has no such file names")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a recipe and of files, of which loading reads the names alone."""
    add(tmp_path, *FILES)
    return tmp_path


def add(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")


def models(folder: Path, text: str, **more: Any) -> dict[str, str]:
    """Return the paths of the models of a recipe by name."""
    recipe = load_text(folder, f"{HEAD}{text}", **more)
    assert list(recipe.groups) == list(recipe.models)
    return {name: model.path for name, model in recipe.models.items()}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("models/*.onnx", {"cls": "models/cls.onnx", "det": "models/det.onnx"}),
        ("[models/*.onnx]", {"cls": "models/cls.onnx", "det": "models/det.onnx"}),
        ("big.onnx", {"big": "big.onnx"}),
        ("./models/d*.onnx", {"det": "models/det.onnx"}),
        ("models/**/*.onnx", {"cls": "models/cls.onnx", "det": "models/det.onnx", "seg-v2": "models/more/seg v2.onnx"}),
        ("[models/*/*.onnx, big.onnx]", {"seg-v2": "models/more/seg v2.onnx", "big": "big.onnx"}),
        # A pattern skips files that another entry names.
        ("[./models/det.onnx, models/*.onnx, 'models/[cd]*.onnx']", {"det": "./models/det.onnx", "cls": "models/cls.onnx"}),
        ("['package:zoo==1.0/a[1].onnx', big.onnx]", {"a-1": "package:zoo==1.0/a[1].onnx", "big": "big.onnx"}),
    ],
)
def test_models_are_named_after_their_files_in_path_order(folder: Path, written: str, expected: dict[str, str]) -> None:
    found = models(folder, f"models: {written}\n")
    assert found == expected
    assert list(found) == list(expected)


def test_a_pattern_can_contain_variables_and_environment_values(folder: Path) -> None:
    text = "vars: {part: models}\nmodels: ['${vars.part}/${env.FIRST:-c}*.onnx', '${recipe.name}.onnx']\n"
    assert models(folder, text, environment={}) == {"cls": "models/cls.onnx", "shop": "shop.onnx"}
    assert list(models(folder, text, environment={"FIRST": "d"})) == ["det", "shop"]
    assert list(models(folder, text, environment={}, settings=["vars.part=models/more/.."])) == ["cls", "shop"]


def test_a_pattern_is_relative_to_the_file_that_contains_the_pattern(folder: Path) -> None:
    (folder / "models" / "part.yaml").write_text("models: '*.onnx'\n", encoding="utf-8")
    (folder / "models" / "more" / "part.yaml").write_text("models: '../*.onnx'\n", encoding="utf-8")
    for part in ("models/part.yaml", "models/more/part.yaml"):
        assert models(folder, f"include: [{part}]\n") == {"cls": "models/cls.onnx", "det": "models/det.onnx"}


def test_watched_folders_are_those_where_a_new_file_can_match(folder: Path) -> None:
    add(folder, "models/.git/x.onnx")
    recipe = load_text(folder, f"{HEAD}models: [models/**/*.onnx, big.onnx]\n")
    assert [path.relative_to(folder).as_posix() for path in recipe.folders] == ["models", "models/more"]
    assert load_text(folder, f"{HEAD}models: [big.onnx]\n").folders == ()


def test_the_folder_of_a_pattern_without_matches_is_watched(folder: Path) -> None:
    with pytest.raises(BrokenRecipe) as broken:
        load_text(folder, f"{HEAD}models: none/*.onnx\n")
    assert [path.name for path in broken.value.rest.folders] == ["none"]


@not_on_windows
def test_template_syntax_in_a_file_name_is_literal(folder: Path) -> None:
    add(folder, "odd/a${b}.onnx")
    assert models(folder, "models: odd/*.onnx\n") == {"a-b": "odd/a${b}.onnx"}


@not_on_windows
def test_a_link_to_a_file_is_a_model_and_a_dangling_link_is_not(folder: Path) -> None:
    add(folder, "elsewhere/x.onnx")
    (folder / "links").mkdir()
    (folder / "links" / "one.onnx").symlink_to("../elsewhere/x.onnx")
    (folder / "links" / "two.onnx").symlink_to("../elsewhere/y.onnx")
    assert models(folder, "models: links/*.onnx\n") == {"one": "links/one.onnx"}


@not_on_windows
@given(st.sets(st.text("aB.- é", min_size=1, max_size=4), min_size=1, max_size=5))
def test_each_file_becomes_one_model_or_names_are_refused(tmp_path_factory: pytest.TempPathFactory, stems: set[str]) -> None:
    folder = tmp_path_factory.mktemp("listed")
    add(folder, *(f"models/{stem}.onnx" for stem in stems))
    visible = sorted(f"models/{stem}.onnx" for stem in stems if not stem.startswith("."))
    text = f"{HEAD}models: models/*.onnx\n"
    problems = problems_of(folder, text)
    if problems:
        assert {problem.code for problem in problems} <= ({"EPB107"} if visible else {"EPB271"})
        return
    found = models(folder, "models: models/*.onnx\n")
    assert list(found.values()) == visible
    assert len({name.casefold() for name in found}) == len(visible)
    assert not any(name_problem(name, Position("", 1, 1)) for name in found)


@pytest.mark.parametrize(
    ("text", "code", "message", "hint"),
    [
        ("models: ‸models/*.ort", "EPB271", "no file matches 'models/*.ort'", "Paths are relative to the recipe."),
        ("models: [big.onnx, ‸none/*]", "EPB271", "no file matches 'none/*'", "Paths are relative to the recipe."),
        ("models: ‸../**/*.onnx", "EPB273", "would search all of", "Write a folder beside or below the recipe"),
        ("models: ‸'*/../x*'", "EPB273", "has '..' after a wildcard", "Write '..' only before the first wildcard."),
        ("models: ‸'${vars.x}/*.onnx'", "EPB109", "'${vars.x}' refers to an unknown name", "Allowed here"),
        ("models: ‸''", "EPB106", "must not be empty", ""),
        ("models: ‸3", "EPB105", "expected a mapping, a list or a string, found the number '3'", ""),
        (
            "models: [other/det.onnx, ‸models/*.onnx]",
            "EPB107",
            "two models have the name 'det': 'other/det.onnx' and 'models/det.onnx'",
            "Name the models explicitly: `models: {<name>: models/det.onnx}`.",
        ),
        (
            "models: [other/DET.onnx, ‸models/*.onnx]",
            "EPB107",
            "the names of two models differ only in case: 'other/DET.onnx' and 'models/det.onnx'",
            "Name the models explicitly",
        ),
        (
            "models: [models/cls.onnx, ‸モデル.onnx]",
            "EPB107",
            "cannot derive a model name from 'モデル.onnx'",
            "Name the models explicitly",
        ),
        ("models: [models/cls.onnx, ‸con.onnx]", "EPB107", "the name 'con' is reserved on Windows", ""),
    ],
)
def test_a_mistake_is_one_problem_with_its_position(folder: Path, text: str, code: str, message: str, hint: str) -> None:
    # The group and the output refer to a model that may be missing for this reason alone.
    rest = "\ngroups: {g: {models: [det]}}\noutputs: [{layout: directory, path: dist, groups: [g, seg]}]\n"
    text, expected = places(f"{HEAD}{text}")
    for more in ("\n", *([rest] if code != "EPB105" and "con.onnx" not in text else [])):
        problems = problems_of(folder, text + more, environment={})
        assert codes_and_places(problems) == [(code, *place) for place in expected], problems
        assert message in problems[0].message
        assert hint in (problems[0].hint or "")


def test_an_invalid_recipe_still_lists_its_files(folder: Path) -> None:
    (folder / "epbuild.yaml").write_text(f"{HEAD}models: none/*.onnx\n", encoding="utf-8")
    with pytest.raises(BrokenRecipe) as broken:
        load(folder / "epbuild.yaml")
    assert broken.value.rest.files == (folder / "epbuild.yaml",)

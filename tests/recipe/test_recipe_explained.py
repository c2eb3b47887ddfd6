"""`validate --explain`: a recipe with its defaults written out means what it meant before."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epbuild.core.errors import Position, RecipeError
from epbuild.recipe.explained import explain
from epbuild.recipe.load import load
from epbuild.recipe.model import Expectation
from tests.output.test_edits import EDITS
from tests.output.test_every_field import CASES, FILES, Case, before_and_after, runs_by_default
from tests.recipe.texts import FULL, MINIMAL
from tests.support.plan_recipes import key_documents
from tests.support.projects import RECIPES

EVERY = 8
"""Distance between the edits of a recipe that are tried."""

SHORT = """\
epbuild: 1
models: models/*.onnx
targets: {phone: {ep: qnn, soc: [SM8650, SM8750]}, rest: {eps: [{ep: qnn, soc: SM8750}, {ep: cpu}]}}
groups: {det: {targets: [phone]}}
"""
EXPLAINED = """\
epbuild: 1
name: shop    # default
toolchains:    # default
  qnn:
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]
models:
  cls: models/cls.onnx
  det: models/det.onnx
"""


def without_comments(text: str) -> str:
    return re.sub(r" {4}# [^\n]*", "", text)


def meaning(file: Path) -> Any:
    """Return the content of a recipe without its positions, defaults and files."""
    recipe = load(file)
    apart = {"file", "files", "names", "digests", "digest", "folders", "defaults"}
    return {name: _plain(value) for name, value in msgspec.structs.asdict(recipe).items() if name not in apart}


def _plain(value: Any) -> Any:
    match value:
        case Position():
            return None
        case Expectation():
            # No number means 0, unless a target ends with an EP that accepts all fallback nodes.
            number = value.fallback_nodes or 0
            return value.ep_context_nodes, number, value.min_shared_ratio
        case msgspec.Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__ if name != "written"}
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
        case _:
            return value


def check(recipe: Path) -> str:
    """Check that the explained recipe means what the recipe means, and is explained by itself. Return it."""
    text = explain(recipe)
    explained = recipe.with_name("explained.yaml")
    explained.write_text(text, encoding="utf-8")
    assert meaning(explained) == meaning(recipe)
    again = explain(explained)
    assert again == without_comments(text)
    assert "#" not in again.replace("a # in a text", "")
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "shop"
    for name in ("models/det.onnx", "models/cls.onnx"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"")
    return place


def explained(folder: Path, text: str) -> str:
    (folder / "epbuild.yaml").write_text(text, encoding="utf-8")
    return check(folder / "epbuild.yaml")


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_each_recipe_has_the_same_action_keys_as_its_explanation(tmp_path: Path, name: str) -> None:
    shutil.copytree(RECIPES, tmp_path / "recipes", ignore=shutil.ignore_patterns("dist", ".epbuild", "__pycache__"))
    recipe = tmp_path / "recipes" / name
    check(recipe)
    before = key_documents(recipe)
    assert before
    assert key_documents(recipe.with_name("explained.yaml")) == before


@pytest.mark.parametrize("text", [FULL, MINIMAL], ids=["full", "minimal"])
def test_a_complete_recipe_can_be_explained(folder: Path, text: str) -> None:
    explained(folder, text)


def variants(every_field: bool) -> dict[str, list[Any]]:
    """Return recipes with a value for each field of the schema, or for a sample, and edits of a recipe, by what they are."""
    found: dict[str, list[Any]] = {"edits": [edit.document for edit in EDITS[::EVERY]]}
    for name, case in CASES.items():
        if isinstance(case, Case) and (every_field or runs_by_default(name)):
            found.setdefault(name.partition(".")[0].removesuffix("[]"), []).extend(before_and_after(case))
    return found


@pytest.mark.parametrize("section", list(variants(every_field=False)))
def test_each_field_keeps_its_meaning(tmp_path: Path, section: str, exhaustive: bool) -> None:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    recipe, texts = tmp_path / "epbuild.yaml", {json.dumps(document): None for document in variants(exhaustive)[section]}
    count = 0
    for text in texts:
        recipe.write_text(text, encoding="utf-8")
        try:
            load(recipe)
        except RecipeError:
            continue
        check(recipe)
        count += 1
    assert count


def test_added_defaults_have_a_comment(folder: Path) -> None:
    text = explained(folder, SHORT)
    assert text.startswith(EXPLAINED)
    for line in (
        "    toolchain: qnn    # default",
        "    matrix:    # from soc",
        "      soc: [SM8650, SM8750]",
        "    provider_options:    # from soc",
        "      backend_type: htp",
        "    models: [det]    # default",
        "    targets: [phone]",
        "  cls:    # default",
        '    targets: ["*"]',
        "outputs:    # default",
        "      - ep: CPUExecutionProvider",
    ):
        assert line in text.splitlines()
    # The CPU EP accepts all fallback nodes: only a group without it has a limit.
    assert text.count("fallback_nodes: 0") == 1


def test_variables_are_kept_with_values_from_the_command_line(folder: Path) -> None:
    text = (
        "epbuild: 1\nname: a\nvars: {soc: SM8750, part: x}\nmodels: ['${env.DIR:-models}/*.onnx', '${vars.part}.onnx']\n"
        "targets: {phone: {ep: qnn, soc: '${vars.soc}'}}\n"
    )
    (folder / "epbuild.yaml").write_text(text, encoding="utf-8")
    found = explain(folder / "epbuild.yaml", settings=["vars.part=z"])
    assert "  soc: SM8750\n  part: z    # --set\n" in found
    assert '  cls: "${env.DIR:-models}/cls.onnx"\n' in found
    assert '  z: "${vars.part}.onnx"\n' in found
    assert '      soc_model: "${vars.soc}"\n' in found
    check(folder / "epbuild.yaml")


def test_extended_and_included_files_are_merged_with_adjusted_paths(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "mine.toml").write_text("", encoding="utf-8")
    (folder / "parts" / "models.yaml").write_text(
        "models: ['../models/*.onnx', near.onnx, '${vars.name}.onnx', 'package:zoo==1.0/far.onnx']\n", encoding="utf-8"
    )
    (folder / "parts" / "base.yaml").write_text(
        "vars: {name: seg}\ncatalogs: [mine.toml]\ninclude: [models.yaml]\n"
        "toolchains: {own: {interpreter: ../venv/bin/python, custom_ops: [libops.so, some_ops]}}\n",
        encoding="utf-8",
    )
    text = explained(
        folder,
        "epbuild: 1\nname: a\nextends: parts/base.yaml\ntargets: {phone: {ep: QNNExecutionProvider, toolchain: own}}\n",
    )
    for line in (
        "  cls: models/cls.onnx",
        "  near: parts/near.onnx",
        '  seg: "parts/${vars.name}.onnx"',
        '  far: "package:zoo==1.0/far.onnx"',
        "catalogs: [parts/mine.toml]",
        "    interpreter: venv/bin/python",
        "    custom_ops: [parts/libops.so, some_ops]",
    ):
        assert line in text.splitlines(), line
    assert "extends" not in text
    assert "include" not in text


def test_models_in_no_group_stay_unbuilt(folder: Path) -> None:
    text = explained(folder, SHORT.replace("groups: {", "groups: {default: none, "))
    assert "  default: none\n" in text


def test_unusual_texts_are_read_back_unchanged(folder: Path) -> None:
    odd = [
        "yes",
        "1e3",
        "1.0",
        "",
        " x ",
        "a: b",
        "- a",
        "a # in a text",
        "é\u2028",
        "tab\t",
        "line\nline",
        "0x1F",
        "null",
        "~",
        "%",
    ]
    document = {
        "epbuild": 1,
        "name": "a",
        "vars": {f"v{number}": value for number, value in enumerate([*odd, 1, 1.5, True, 10**15])},
        "models": {"m": {"path": "m.onnx", "input_shapes": {"x: y": [1, 2]}}},
        "targets": {"t": {"ep": "qnn", "provider_options": {"${": 1} | {name: name for name in odd if name}}},
    }
    explained(folder, json.dumps(document).replace("${", "$$"))

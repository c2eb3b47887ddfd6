"""First recipes: short, valid for each EP, and with the same keys as the recipes that spell out every default."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.commands.init.choices import list_starter_kinds
from epbuild.commands.init.exports import ExportScript, find_export_script
from epbuild.commands.init.recipe import RecipeChoices, format_recipe
from epbuild.plan.planner import make_plan
from epbuild.plan.preparing import Preparation
from epbuild.plan.steps import Plan
from epbuild.recipe.load import load
from tests.support.commands import write_model
from tests.support.plan_recipes import key_documents

MODELS = ["a.onnx", "b.onnx"]
LONG = """\
epbuild: 1
name: shop
toolchains:
  qnn:
    packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]
models:
  a: a.onnx
  b: b.onnx
targets:
  SM8750:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
groups:
  main:
    separate: true
    models: [a, b]
    targets: [SM8750]
    expect: {fallback_nodes: 0}
    verify: true
outputs:
  - layout: directory
    path: dist/${recipe.name}/${group}/${target}
"""
SHARED = LONG.replace("separate: true", "share_weights: true")
OPENVINO = """\
epbuild: 1
name: shop
toolchains:
  openvino:
    packages: [onnxruntime-openvino==1.24.1]
models:
  a: a.onnx
targets:
  GPU:
    toolchain: openvino
    ep: OpenVINOExecutionProvider
    provider_options:
      device_type: GPU
groups:
  a:
    models: [a]
    targets: [GPU]
    expect: {fallback_nodes: 0}
    verify: true
outputs:
  - layout: directory
    path: dist/${recipe.name}/${group}/${target}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "shop"
    for name in MODELS:
        write_model(place / name)
    return place


def written(folder: Path, text: str) -> Path:
    file = folder / "epbuild.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def planned(folder: Path, text: str) -> Plan:
    return make_plan(load(written(folder, text)))


@pytest.mark.parametrize(
    ("choices", "long"),
    [
        (RecipeChoices(list_starter_kinds()["qnn"], MODELS, {"SM8750": "SM8750"}), LONG),
        (RecipeChoices(list_starter_kinds()["qnn"], MODELS, {"SM8750": "SM8750"}, share_weights=True), SHARED),
        (RecipeChoices(list_starter_kinds()["openvino"], MODELS[:1], {"GPU": "GPU"}), OPENVINO),
    ],
    ids=["two models", "shared weights", "one model"],
)
def test_first_recipe_equals_the_recipe_with_explicit_defaults(folder: Path, choices: RecipeChoices, long: str) -> None:
    text = format_recipe(folder / "epbuild.yaml", place(folder, choices))
    assert len(text.splitlines()) < len(long.splitlines()) / 2
    assert key_documents(written(folder, text)) == key_documents(written(folder, long))


def place(folder: Path, choices: RecipeChoices) -> RecipeChoices:
    return RecipeChoices(
        choices.kind, [str(folder / model) for model in choices.models], choices.targets, share_weights=choices.share_weights
    )


@pytest.mark.parametrize("models", [MODELS[:1], MODELS, ["default.onnx"]], ids=["one", "two", "default"])
@pytest.mark.parametrize("ep", list_starter_kinds())
def test_first_recipe_and_its_package_line_are_valid_for_each_ep(folder: Path, ep: str, models: list[str]) -> None:
    write_model(folder / "default.onnx")
    kind = list_starter_kinds()[ep]
    text = format_recipe(folder / "epbuild.yaml", place(folder, RecipeChoices(kind, models, {"x": kind.start.example})))
    plan = planned(folder, text)
    assert [step.kind for step in plan.steps].count("compile") == len(models)
    [comment] = [line for line in text.splitlines() if line.startswith("# outputs: ")]
    packaged = planned(folder, text.replace(comment, comment.removeprefix("# ")))
    names = [emission.path.name for emission in packaged.emissions.values()]
    if kind.entry.no_packages is None:
        assert names == ["shop.ortpackage"]
    else:
        assert all(name.endswith("-x.zip") for name in names)
    assert max(map(len, text.splitlines())) <= 128


def test_commented_group_shares_weights_when_enabled(folder: Path) -> None:
    choices = place(folder, RecipeChoices(list_starter_kinds()["qnn"], MODELS, {"phone": "SM8750"}))
    text = format_recipe(folder / "epbuild.yaml", choices)
    [shared] = [line.partition("`")[2].rstrip("`.") for line in text.splitlines() if "share_weights" in line]
    [separate] = [line for line in text.splitlines() if line.startswith("  main:")]
    assert "share:main/phone" in {step.id for step in planned(folder, text.replace(separate, f"  {shared}")).steps}


def test_recipe_name_is_written_if_the_folder_name_differs(tmp_path: Path) -> None:
    for folder, given, name in (
        ("shop", None, None),
        ("shop", "other", "other"),
        ("my shop", None, "my-shop"),
        ("größe ünï 模型", None, "grosse-uni"),
        ("模型", None, "models"),
        ("-", None, "models"),
    ):
        write_model(tmp_path / folder / "a.onnx")
        choices = RecipeChoices(list_starter_kinds()["qnn"], [str(tmp_path / folder / "a.onnx")], {"phone": "SM8750"}, name=given)
        text = format_recipe(tmp_path / folder / "epbuild.yaml", choices)
        assert [line for line in text.splitlines() if line.startswith("name:")] == ([f"name: {name}"] if name else [])
        planned(tmp_path / folder, text)


def test_many_models_get_one_line_each(folder: Path) -> None:
    names = [f"a_model_with_a_long_name_{number}.onnx" for number in range(5)]
    for name in names:
        write_model(folder / name)
    text = format_recipe(
        folder / "epbuild.yaml", place(folder, RecipeChoices(list_starter_kinds()["qnn"], names, {"phone": "SM8750"}))
    )
    assert f"models:\n  - {names[0]}\n" in text
    assert len(planned(folder, text).steps) == 15


EXPORT = "import argparse\nfrom layers import rope\nimport torch, my_models\nfrom transformers.models import llama\n"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name, text in {"export_llm.py": EXPORT, "layers.py": "import numpy\n", "a.safetensors": "", "config.json": ""}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_checkpoint_with_one_export_script_gets_a_recipe_that_runs_it(checkpoint: Path) -> None:
    export = find_export_script(checkpoint)
    assert export == ExportScript(
        "export_llm.py",
        ("export_llm.py", "layers.py", "*.safetensors", "*.json"),
        ["numpy", "onnx", "onnxscript", "torch", "transformers"],
        ["my_models"],  # it could be anyone's package
    )
    choices = RecipeChoices(list_starter_kinds()["qnn"], ["model"], {"SM8750": "SM8750"}, export=export)
    plan = planned(checkpoint, format_recipe(checkpoint / "epbuild.yaml", choices))
    make = plan.of(Preparation)["prepare:model/make"]
    assert make.command == ("python", "files/export_llm.py", "out/model.onnx")
    assert [*make.staged] == ["files/export_llm.py", "files/layers.py", "files/a.safetensors", "files/config.json"]


@pytest.mark.parametrize("change", ["convert.py", "a.safetensors"], ids=["two scripts", "no checkpoint"])
def test_an_export_script_must_be_the_only_one_beside_a_checkpoint(checkpoint: Path, change: str) -> None:
    file = checkpoint / change
    file.unlink() if file.exists() else file.touch()
    assert find_export_script(checkpoint) is None


def test_an_export_script_is_never_run_and_may_be_invalid(checkpoint: Path) -> None:
    (checkpoint / "export_llm.py").write_text("raise SystemExit('it ran'\n", encoding="utf-8")
    export = find_export_script(checkpoint)
    assert export is not None
    assert export.packages == ["onnx", "onnxscript"]

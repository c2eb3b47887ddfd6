"""`epbuild add`: recipes gain models and targets, and are changed only if they are valid afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.commands.add import add_models, add_targets
from epbuild.commands.init.answers import BadAnswer
from epbuild.core.errors import EpbuildError, PlanError, RecipeError
from epbuild.recipe.load import load
from tests.support.commands import epbuild, write_model

RECIPE = """\
# Models of the phone.
epbuild: 1
name: shop
models: [a.onnx]  # from training
targets:
  SM8750: {ep: qnn, soc: SM8750}   # this year's

# The end.
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_model(tmp_path / f"{name}.onnx")
    path = tmp_path / "epbuild.yaml"
    path.write_text(RECIPE, encoding="utf-8", newline="\n")
    return path


def write_open_model(path: Path) -> Path:
    """Write a model whose batch size is open."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def refused(recipe: Path, error: type[Exception], *models: str, targets: tuple[str, ...] = (), ep: str | None = None) -> str:
    """Return the message of an addition that fails and leaves the folder as it is."""
    before = {path: path.read_bytes() for path in recipe.parent.iterdir()}
    with pytest.raises(error) as caught:
        add_models(recipe, models, [], None) if models else add_targets(recipe, targets, ep)
    assert {path: path.read_bytes() for path in recipe.parent.iterdir()} == before
    return str(caught.value)


def test_models_and_targets_are_added_and_the_rest_stays(recipe: Path) -> None:
    recipe.chmod(0o640)
    mode = recipe.stat().st_mode
    add_models(recipe, [str(recipe.parent / "b.onnx")], [], None)
    add_targets(recipe, ["Snapdragon 8 Gen 3", "laptop=SC8380XP"], None)
    lines = RECIPE.replace("a.onnx", "a.onnx, b.onnx").splitlines(keepends=True)
    lines[6:6] = ['  SM8650: {ep: qnn, soc: "Snapdragon 8 Gen 3"}\n', "  laptop: {ep: qnn, soc: SC8380XP}\n"]
    assert recipe.read_text(encoding="utf-8") == "".join(lines)
    assert recipe.stat().st_mode == mode
    assert set(load(recipe).targets) == {"SM8750", "SM8650", "laptop"}


@pytest.mark.skipif("sys.platform == 'win32'", reason="has no mode bits for other users")
def test_the_draft_of_a_private_recipe_is_private(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe.chmod(0o600)
    modes = []

    def unlink(path: Path, missing_ok: bool = False, *, original: Callable[..., None] = Path.unlink) -> None:
        if path.exists():
            modes.append(stat.S_IMODE(path.stat().st_mode))
        original(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    umask = os.umask(0o022)
    try:
        add_models(recipe, [str(recipe.parent / "b.onnx")], [], None)
    finally:
        os.umask(umask)
    assert modes == [0o600]
    assert stat.S_IMODE(recipe.stat().st_mode) == 0o600


def test_open_sizes_are_guessed_or_given_if_a_target_needs_them(recipe: Path) -> None:
    model = write_open_model(recipe.parent / "open.onnx")
    assert add_models(recipe, [str(model)], [], None).guesses == 1
    assert "models: {a: a.onnx, open: {path: open.onnx, input_shapes: {x: [1, 4]}}}" in recipe.read_text(encoding="utf-8")
    assert add_models(recipe, [f"wide={model}"], ["wide:x=8,4"], None).guesses == 0
    assert load(recipe).models["wide"].input_shapes["x"].sizes == (8, 4)


def test_a_file_under_two_names_has_sizes_for_each(recipe: Path) -> None:
    model = write_open_model(recipe.parent / "open.onnx")
    add_models(recipe, [f"narrow={model}", f"wide={model}"], ["narrow:x=2,4", "wide:x=8,4"], None)
    models = load(recipe).models
    assert [models[name].input_shapes["x"].sizes for name in ("narrow", "wide")] == [(2, 4), (8, 4)]


@pytest.mark.parametrize("order", [1, -1])
def test_a_model_in_two_places_is_added_once(recipe: Path, order: int) -> None:
    folder = recipe.parent / "models"
    folder.mkdir()
    for name in ("c", "d"):
        write_model(folder / f"{name}.onnx")
    places = [str(folder), str(folder / "c.onnx"), f"other={folder / 'd.onnx'}"][::order]
    add_models(recipe, places, [], None)
    assert set(load(recipe).models) == {"a", "c", "other"}


def test_two_models_with_one_name_are_refused(recipe: Path) -> None:
    folder = recipe.parent
    write_model(folder / "c.onnx")
    reason = "two models have the name 'b': choose another name, as in NAME=MODEL"
    assert refused(recipe, BadAnswer, f"b={folder / 'b.onnx'}", f"b={folder / 'c.onnx'}") == reason
    assert refused(recipe, BadAnswer, f"b={folder / 'c.onnx'}", str(folder / "b.onnx")) == reason
    assert "differs from" in refused(recipe, RecipeError, f"B={folder / 'c.onnx'}", str(folder / "b.onnx"))


def test_targets_of_another_packaging_bring_their_toolchain(recipe: Path) -> None:
    add_targets(recipe, ["4000"], "openvino-npu")
    assert "onnxruntime-ep-openvino==1.8.1" in load(recipe).toolchains["openvino-npu"].packages
    assert "set the EP with --ep, one of qnn, openvino-npu" in refused(recipe, BadAnswer, targets=("5010",))


def test_an_unfinished_recipe_gets_its_first_models(recipe: Path) -> None:
    recipe.write_text("epbuild: 1\nname: shop\ntargets: {SM8750: {ep: qnn, soc: SM8750}}\n", encoding="utf-8")
    assert [each.name for each in add_models(recipe, [str(recipe.parent)], [], None).definitions] == ["a", "b"]
    assert set(load(recipe).models) == {"a", "b"}


def test_a_model_that_no_group_uses_is_named(recipe: Path) -> None:
    recipe.write_text(f"{RECIPE}groups: {{default: none, a: {{}}}}\n", encoding="utf-8")
    assert add_models(recipe, [str(recipe.parent / "b.onnx")], [], None).unused == ["b"]


def test_nothing_is_written_for_an_invalid_addition(recipe: Path) -> None:
    folder = recipe.parent
    assert "Did you mean 'SM8750'?" in refused(recipe, PlanError, targets=("SM8751",))
    assert "the recipe already has 'SM8750' in 'targets'" in refused(recipe, RecipeError, targets=("SM8750",))
    assert "It is the model 'a' of the recipe." in refused(recipe, BadAnswer, str(folder / "a.onnx"))
    assert "the recipe already has 'a' in 'models'" in refused(recipe, RecipeError, f"a={folder / 'b.onnx'}")
    assert "has 2 models, so they cannot have the name 'x'" in refused(recipe, BadAnswer, f"x={folder}")
    assert "does not exist" in refused(recipe, EpbuildError, str(folder / "c.onnx"))
    recipe.write_text(RECIPE.replace("SM8750}", "*soc}"), encoding="utf-8")
    assert "undefined alias" in refused(recipe, RecipeError, targets=("SM8650",))
    recipe.unlink()
    assert "the recipe does not exist" in refused(recipe, RecipeError, targets=("SM8650",))


@pytest.mark.slow
def test_the_command_prints_what_it_added(recipe: Path) -> None:
    done = epbuild(recipe.parent, "add", "model", "b.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["models:", "  b: b.onnx", "Added 1 model to epbuild.yaml. Next: epbuild run"]
    done = epbuild(recipe.parent, "add", "target", "--ep", "qn", "SM8650")
    assert done.returncode == 2
    assert "Did you mean 'qnn'?" in done.stderr
    assert epbuild(recipe.parent, "add").returncode == 2

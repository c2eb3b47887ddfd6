"""First recipes of decoders: prefill and decode from one file, at sizes that agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epbuild.commands.init.answers import find_pipelines
from epbuild.commands.init.choices import list_starter_kinds
from epbuild.commands.init.recipe import RecipeChoices, format_recipe
from epbuild.onnxfile.read.decoders import find_decoder
from epbuild.onnxfile.read.headers import read_header
from epbuild.output.genai_files import check_pipelines
from epbuild.plan.planner import make_plan
from epbuild.plan.steps import Plan
from epbuild.recipe.load import load
from tests.support.commands import write_model

MODELS = Path(__file__).parents[2] / "recipes" / "models" / "tiny-llm"


def plan_first_recipe(folder: Path, *names: str, decoders: int = 1) -> Plan:
    """Plan the first recipe of models, of which the first `decoders` are decoders."""
    folder.mkdir(exist_ok=True)
    shutil.copy(MODELS / "weights.bin", folder)
    paths = [folder / f"{name}.onnx" for name in names]
    for path in paths[:decoders]:
        shutil.copy(MODELS / "decoder.onnx", path)
    for path in paths[decoders:]:
        write_model(path)
    found = {str(path): decoder for path in paths[:decoders] if (decoder := find_decoder(read_header(path)))}
    assert len(found) == decoders
    choices = RecipeChoices(
        list_starter_kinds()["qnn"], [*map(str, paths)], {"phone": "SM8750"}, decoders=found, pipelines=find_pipelines(found)
    )
    recipe = folder / "epbuild.yaml"
    recipe.write_text(format_recipe(recipe, choices), encoding="utf-8")
    return make_plan(load(recipe))


def test_decoder_is_compiled_for_a_prompt_and_for_one_token(tmp_path: Path) -> None:
    plan = plan_first_recipe(tmp_path / "shop", "decoder")
    [group] = plan.session_groups.values()
    assert (group.share, [member.name for member in group.members]) == (True, ["prefill", "decode"])
    assert [member.inputs["input_ids"] for member in group.members] == [(1, 64), (1, 1)]
    assert {member.inputs[name] for member in group.members for name in ("past_key_0", "past_value_1")} == {(1, 4, 256, 24)}
    assert plan.warnings == ()


def test_a_decoder_with_a_genai_configuration_has_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    shutil.copy(MODELS / "genai_config.json", tmp_path / "shop")
    plan = plan_first_recipe(tmp_path / "shop", "decoder")
    check_pipelines(plan)
    [emission] = plan.emissions.values()
    genai = emission.parts[0].genai
    assert genai is not None
    assert genai.roles == {"prefill": "prefill", "decode": "decode"}
    [group] = plan.session_groups.values()
    assert {member.inputs["past_key_0"] for member in group.members} == {(1, 4, 128, 24)}


@pytest.mark.parametrize(
    ("old", "new"), [('"window_size": 64', '"size": 64'), ('"vocab_size": 256', '"vocab_size": "?"'), ("{", "")]
)
def test_a_genai_configuration_that_cannot_be_used_is_left_out(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "shop").mkdir()
    text = (MODELS / "genai_config.json").read_text(encoding="utf-8").replace(old, new)
    (tmp_path / "shop" / "genai_config.json").write_text(text, encoding="utf-8")
    [emission] = plan_first_recipe(tmp_path / "shop", "decoder").emissions.values()
    assert emission.parts[0].genai is None


def test_other_models_keep_groups_of_their_own(tmp_path: Path) -> None:
    plan = plan_first_recipe(tmp_path / "shop", "decoder", "a", "b")
    assert {ident for ident in plan.session_groups if "share:" in ident} == {"share:decoder/phone"}
    assert [step.kind for step in plan.steps].count("compile") == 4


@pytest.mark.parametrize("name", ["default", "main"])
def test_decoder_may_have_any_name(tmp_path: Path, name: str) -> None:
    plan = plan_first_recipe(tmp_path / "shop", name, "other")
    assert [step.kind for step in plan.steps].count("share") == 1

"""Split models: their parts, members, sharing sets and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epbuild.core.errors import RecipeError
from epbuild.recipe.load import load_with_nodes
from epbuild.recipe.nodes import to_plain

RECIPE = """\
epbuild: 1
name: tiny
models:
  head: head.onnx
  decoder: {path: decoder.onnx, split: {parts: 2}}
targets:
  phone: {ep: qnn, soc: SM8750}
"""
GROUP = """\
groups:
  llm:
    models:
      - {model: decoder, name: prefill, dimensions: {sequence: 64}}
      - {model: decoder, name: decode, dimensions: {sequence: 1}}
      - {model: head, compile: none}
    share_weights: true
    genai: {config: genai.json, roles: {prefill: prefill, decode: decode, lm_head: head}}
"""


def written(folder: Path, text: str) -> Any:
    path = folder / "epbuild.yaml"
    path.write_text(text, encoding="utf-8")
    return to_plain(load_with_nodes(path).written)


def part(number: int) -> dict[str, Any]:
    step = {"split": {"parts": 2, "part": number}, "toolchain": "split"}
    return {"from": "decoder", "prepare": [step]}


def test_each_part_is_a_model_made_from_the_split_model(tmp_path: Path) -> None:
    models = written(tmp_path, RECIPE)["models"]
    assert models == {
        "head": "head.onnx",
        "decoder": {"path": "decoder.onnx"},
        "decoder_0": part(0),
        "decoder_1": part(1),
    }


def test_a_split_model_in_no_group_has_a_group_with_all_parts(tmp_path: Path) -> None:
    groups = written(tmp_path, RECIPE)["groups"]
    assert [*groups] == ["head", "decoder"]
    assert groups["decoder"]["models"] == [{"model": "decoder_0"}, {"model": "decoder_1"}]


def test_a_split_model_with_a_part_in_a_group_has_no_group_of_its_own(tmp_path: Path) -> None:
    text = RECIPE + "groups: {first: {models: [decoder_0]}}\n"
    assert [*written(tmp_path, text)["groups"]] == ["first", "head"]


def test_an_entry_of_a_split_model_adds_a_member_for_each_part(tmp_path: Path) -> None:
    models = written(tmp_path, RECIPE + GROUP)["groups"]["llm"]["models"]
    assert models == [
        {"model": "decoder_0", "name": "prefill_0", "dimensions": {"sequence": 64}},
        {"model": "decoder_1", "name": "prefill_1", "dimensions": {"sequence": 64}},
        {"model": "decoder_0", "name": "decode_0", "dimensions": {"sequence": 1}},
        {"model": "decoder_1", "name": "decode_1", "dimensions": {"sequence": 1}},
        {"model": "head", "compile": "none"},
    ]


def test_the_members_of_each_part_share_weights(tmp_path: Path) -> None:
    group = written(tmp_path, RECIPE + GROUP)["groups"]["llm"]
    assert group["share_weights"] == [["prefill_0", "decode_0"], ["prefill_1", "decode_1"]]


def test_models_that_are_not_split_share_weights_with_each_other(tmp_path: Path) -> None:
    text = RECIPE + GROUP.replace("{model: head, compile: none}", "head").replace(", lm_head: head}", "}")
    text = text.replace("      - head\n", "      - head\n      - {model: head, name: tail}\n")
    assert written(tmp_path, text)["groups"]["llm"]["share_weights"][2:] == [["head", "tail"]]


def test_a_sharing_set_of_entries_becomes_a_set_for_each_part(tmp_path: Path) -> None:
    text = RECIPE + GROUP.replace("share_weights: true", "share_weights: [[decode, prefill]]")
    group = written(tmp_path, text)["groups"]["llm"]
    assert group["share_weights"] == [["decode_0", "prefill_0"], ["decode_1", "prefill_1"]]


def test_parts_without_a_second_member_share_nothing(tmp_path: Path) -> None:
    text = RECIPE + "groups: {llm: {models: [decoder], share_weights: true}}\n"
    assert written(tmp_path, text)["groups"]["llm"]["share_weights"] is False


def test_a_role_of_a_split_model_runs_its_parts_in_order(tmp_path: Path) -> None:
    roles = written(tmp_path, RECIPE + GROUP)["groups"]["llm"]["genai"]["roles"]
    assert roles == {"prefill": ["prefill_0", "prefill_1"], "decode": ["decode_0", "decode_1"], "lm_head": "head"}


def test_a_pattern_matches_the_parts_of_a_split_model(tmp_path: Path) -> None:
    text = RECIPE + 'groups: {all: {models: ["*", {model: head, name: other}]}}\n'
    models = written(tmp_path, text)["groups"]["all"]["models"]
    assert models == [{"model": "decoder_0"}, {"model": "decoder_1"}, {"model": "head", "name": "other"}]


def test_dimensions_of_a_split_model_apply_to_its_parts(tmp_path: Path) -> None:
    text = RECIPE.replace("split:", "dimensions: {n: 4}, split:")
    assert written(tmp_path, text)["models"]["decoder_1"] == {**part(1), "dimensions": {"n": 4}}


def test_parts_can_have_names(tmp_path: Path) -> None:
    text = RECIPE.replace("{parts: 2}", "{at: [x], names: [first, second]}") + "groups: {llm: {models: [decoder]}}\n"
    root = written(tmp_path, text)
    assert [*root["models"]] == ["head", "decoder", "first", "second"]
    assert root["groups"]["llm"]["models"] == [{"model": "first"}, {"model": "second"}]


def test_a_part_can_be_split_again(tmp_path: Path) -> None:
    models = written(tmp_path, RECIPE.replace("head: head.onnx", "layers: {from: decoder_1, split: {layers: [4]}}"))["models"]
    assert [*models] == ["layers_0", "layers_1", "decoder", "decoder_0", "decoder_1"]
    assert [models[name]["from"] for name in ("layers_0", "layers_1")] == ["decoder_1", "decoder_1"]


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ("{at: [a, [b, c]]}", 3),
        ("{layers: [4]}", 2),
        ("{parts: '${vars.n}'}", 3),
    ],
)
def test_the_boundaries_give_the_number_of_parts(tmp_path: Path, split: str, parts: int) -> None:
    models = written(tmp_path, "vars: {n: 3}\n" + RECIPE.replace("{parts: 2}", split))["models"]
    assert [name for name in models if name.startswith("decoder_")] == [f"decoder_{number}" for number in range(parts)]


def test_unknown_keys_of_a_part_that_is_split_again_are_reported(tmp_path: Path) -> None:
    text = RECIPE.replace("head: head.onnx", "layers: {from: decoder_1, dimensons: {n: 1}, split: {parts: 2}}")
    with pytest.raises(RecipeError, match=r"unknown key 'dimensons' in models\.layers\. Did you mean 'dimensions'"):
        written(tmp_path, text)
    kept = RECIPE.replace("head: head.onnx", "layers: {from: decoder_1, input_shapes: {x: [1]}, split: {parts: 2}}")
    assert written(tmp_path, kept)["models"]["layers_1"]["input_shapes"] == {"x": [1]}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{parts: 2}", "{parts: 0}", "the number of parts of a model must be an integer from 1 to 100"),
        ("{parts: 2}", "{}", "the number of parts of a model must be an integer from 1 to 100"),
        ("{parts: 2}", "{parts: 2, part: 1}", "unknown key 'part' in 'split'. Did you mean 'parts'?"),
        ("{parts: 2}", "{parts: 2, names: [a]}", "'names' must list 2 different names, one for each part of 'decoder'"),
        (
            "  head: head.onnx",
            "  decode: {path: x.onnx, split: {at: [x], names: [decoder_1, b]}}",
            "the model 'decoder_1' has the name",
        ),
        ("  head: head.onnx", "  decoder_1: head.onnx", "the model 'decoder_1' has the name of a part of 'decoder'"),
    ],
)
def test_a_wrong_split_is_reported_in_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(RecipeError) as raised:
        written(tmp_path, RECIPE.replace(old, new))
    assert words in str(raised.value)
    assert "4:" in str(raised.value) or "5:" in str(raised.value)

"""Sessions of a group: sets of models that share weights, and models that are not compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.core.errors import PlanError
from epbuild.plan.steps import Step
from tests.support.plan_recipes import RECIPE, edited, plan_of, problems_of, write_model, write_models
from tests.support.recipe_texts import codes_and_places, places

PARTS = (
    "    models: [prefill, decode]\n",
    "    models: [prefill_0, prefill_1, decode_0, {model: head, compile: none}, decode_1, alone]\n",
)
SETS = ("share_weights: true", "share_weights: [[prefill_0, decode_0], [decode_1, prefill_1]]")
MODELS = (
    "  classifier: models",
    "".join(f"  {name}: models/{name}.onnx\n" for name in ("prefill_0", "prefill_1", "decode_0", "decode_1", "alone", "head"))
    + "  classifier: models",
)
TEXT = edited(RECIPE, PARTS, SETS, MODELS)


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    for name in ("prefill_0", "prefill_1", "decode_0", "decode_1", "alone", "head"):
        write_model(tmp_path / "models" / f"{name}.onnx", weights={"shared": [4]})
    return tmp_path


def test_each_sharing_set_is_one_process_with_one_binary(workshop: Path) -> None:
    plan = plan_of(workshop, TEXT, ["emit:decoder/*"])
    members = {ident: [member.name for member in group.members] for ident, group in plan.session_groups.items()}
    assert members == {
        "share:decoder/phone/prefill_0": ["prefill_0", "decode_0"],
        "share:decoder/phone/prefill_1": ["prefill_1", "decode_1"],
        "copy:decoder/phone/head": ["head"],
        "compile:decoder/phone/alone": ["alone"],
    }
    assert [group.share for group in plan.session_groups.values()] == [True, True, False, False]
    binaries = plan.emissions["emit:decoder/phone/directory"].parts[0].binaries
    assert {name: names["QNNExecutionProvider"] for name, names in binaries.items()} == {
        "prefill_0": "prefill_0_qnn.bin",
        "decode_0": "prefill_0_qnn.bin",
        "prefill_1": "prefill_1_qnn.bin",
        "decode_1": "prefill_1_qnn.bin",
        "alone": "alone_qnn.bin",
    }


def test_each_sharing_set_is_checked_for_common_weights(workshop: Path) -> None:
    write_model(workshop / "models" / "decode_1.onnx", weights={"own": [4]}, value=1.0)
    assert [warning.message.partition(":")[0] for warning in plan_of(workshop, TEXT).warnings] == [
        f"the model '{name}' shares nothing" for name in ("prefill_1", "decode_1")
    ]


def test_an_uncompiled_model_is_emitted_under_its_own_name(workshop: Path) -> None:
    plan = plan_of(workshop, TEXT)
    assert Step("copy:decoder/phone/head", "copy", (), "copy:decoder/phone/head") in plan.steps
    assert not plan.session_groups["copy:decoder/phone/head"].compiled
    part = plan.emissions["emit:decoder/phone/directory"].parts[0]
    assert (part.models["head"], part.models["alone"]) == ("head.onnx", "alone_ctx.onnx")
    assert "head" not in part.binaries


def test_the_template_for_file_names_applies_to_uncompiled_models(workshop: Path) -> None:
    plan = plan_of(workshop, TEXT + "    model: ${model}.x.onnx\n")
    assert plan.emissions["emit:decoder/phone/directory"].parts[0].models["head"] == "head.x.onnx"


def test_an_uncompiled_model_may_have_open_sizes(workshop: Path) -> None:
    write_model(workshop / "models" / "head.onnx", shape=["batch", None])
    plan_of(workshop, TEXT)
    with pytest.raises(PlanError, match="open dimensions"):
        plan_of(workshop, edited(TEXT, (", compile: none", "")))


def test_a_group_with_compile_none_copies_all_models_but_those_with_settings(workshop: Path) -> None:
    text = edited(RECIPE, ("[prefill, decode]", "[prefill, {model: decode, compile: {}}]\n    compile: none"), ("true", "false"))
    plan = plan_of(workshop, text, ["emit:decoder/*"])
    assert [*plan.session_groups] == ["copy:decoder/phone/prefill", "compile:decoder/phone/decode"]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ("[[prefill_0, ‸decode]]", "'share_weights' names 'decode', which is not a model of the group 'decoder'. Did you mean"),
        ("[[prefill_0, decode_0], [prefill_1, ‸decode_0]]", "'share_weights' names the model 'decode_0' twice"),
        ("[[prefill_0, ‸head]]", "the model 'head' is not compiled and cannot share a context binary"),
    ],
)
def test_wrong_sharing_sets_are_reported_in_place(workshop: Path, sets: str, words: str) -> None:
    text, marks = places(edited(TEXT, (SETS[1], f"share_weights: {sets}")))
    found = problems_of(workshop, text)
    assert codes_and_places(found) == [("EPB230", *mark) for mark in marks]
    assert words in found[0].text


def test_only_models_of_a_set_must_not_embed_their_context(workshop: Path) -> None:
    plan_of(workshop, edited(TEXT, ("decode_1, alone]", "decode_1, {model: alone, compile: {embed: true}}]")))
    with pytest.raises(PlanError, match="embedded context cannot be shared"):
        plan_of(workshop, edited(TEXT, ("prefill_1, decode_0", "{model: prefill_1, compile: {embed: true}}, decode_0")))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [("dimensions: {bb: 4}", "no input dimension with the name or denotation 'bb'"), ("input_shapes: {nope: [1]}", "'nope'")],
)
def test_wrong_sizes_of_an_uncompiled_model_are_reported(workshop: Path, sizes: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_of(workshop, edited(TEXT, ("compile: none", f"compile: none, {sizes}")))


def test_members_in_no_set_have_no_sharing_ratio(workshop: Path) -> None:
    text = edited(TEXT, (SETS[1], f"{SETS[1]}\n    expect: {{shared_bytes: {{min_ratio: 0.3, measure: alone}}}}"))
    groups = plan_of(workshop, text, ["emit:decoder/*"]).session_groups
    assert [group.min_shared_ratio for group in groups.values()] == [0.3 if group.share else None for group in groups.values()]


def test_a_group_with_an_uncompiled_model_cannot_be_merged(workshop: Path) -> None:
    with pytest.raises(PlanError, match="cannot be merged, because its model 'head' is not compiled"):
        plan_of(workshop, edited(TEXT, (SETS[1], "merge: {name: llm}")))


def test_a_pipeline_has_the_same_parts_for_the_prompt_and_each_token(workshop: Path) -> None:
    (workshop / "genai.json").write_text("{}", encoding="utf-8")
    roles = "{prefill: [prefill_0, prefill_1], decode: [decode_0, decode_1], embeddings: alone, lm_head: head}"
    text = edited(TEXT, (SETS[1], f"genai: {{config: genai.json, roles: {roles}}}"))
    genai = plan_of(workshop, text).emissions["emit:decoder/phone/directory"].parts[0].genai
    assert genai is not None
    assert [name for name, role in genai.roles.items() if role in ("prefill", "decode")] == [
        "prefill_0",
        "prefill_1",
        "decode_0",
        "decode_1",
    ]
    moved = edited(text, ("[decode_0, decode_1], embeddings: alone", "decode_0, embeddings: [alone, decode_1]"))
    with pytest.raises(PlanError, match="different number of parts: 2 models for the prompt, 1 model for each token"):
        plan_of(workshop, moved)


def test_each_sharing_set_has_its_own_weights_file(workshop: Path) -> None:
    text = edited(TEXT, (SETS[1], f"{SETS[1]}\n    share_initializers: true"))
    groups = plan_of(workshop, text).session_groups
    assert groups["share:decoder/phone/prefill_1"].weights_file == "decoder-prefill_1.weights.bin"


def test_a_member_of_a_sharing_set_may_limit_the_growth_of_its_figures(workshop: Path) -> None:
    (workshop / "last.json").write_text('{"format": 1, "steps": []}', encoding="utf-8")
    own = "{model: decode, expect: {baseline: last.json, max_growth: {load_ms: 0.1}}}"
    measure = 'measure: {command: [run, "${in}", "${out}"]}'
    assert problems_of(workshop, edited(RECIPE, ("[prefill, decode]", f"[prefill, {own}]\n    {measure}"))) == ()

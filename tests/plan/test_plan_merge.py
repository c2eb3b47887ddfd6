"""Plan of a group's `merge`: one model in each output, a merge step, and problems of invalid merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.onnxfile.merge.connection import Connection
from epbuild.plan.steps import Step
from tests.support.plan_recipes import RECIPE, edited, plan_of, problems_of, write_models
from tests.support.recipe_texts import MARK, codes_and_places, places

SHARED = "share:decoder/phone"
MERGE = "merge:decoder/phone"
EMIT = "emit:decoder/phone/directory"
SETTINGS = "    share_weights: true\n"
OUTPUT = "path: dist/${group}/${target}\n"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def merging(text: str) -> str:
    """Return the recipe with `merge: text` in the group `decoder`."""
    return edited(RECIPE, (SETTINGS, f"{SETTINGS}    merge: {text}\n"))


def test_merging_is_a_step_of_the_emission_between_the_compile_and_the_emit_step(workshop: Path) -> None:
    plan = plan_of(workshop, merging("{name: llm}"))
    steps = [step for step in plan.steps if "decoder" in step.id]
    assert steps[-2:] == [Step(MERGE, "merge", (SHARED,), EMIT), Step(EMIT, "emit", (MERGE,), EMIT)]
    assert plan.emissions[EMIT].steps == (MERGE, EMIT)
    assert plan.emissions["emit:vision/cpu/directory"].steps == ("emit:vision/cpu/directory",)


@pytest.mark.parametrize("glob", ["merge:*", "emit:decoder/*"])
def test_selecting_merge_or_emit_selects_both_steps_and_their_dependencies(workshop: Path, glob: str) -> None:
    plan = plan_of(workshop, merging("{name: llm}"), [glob])
    assert [step.id for step in plan.steps] == [
        "compile:decoder/phone/prefill",
        "compile:decoder/phone/decode",
        SHARED,
        MERGE,
        EMIT,
    ]


def test_the_merged_model_replaces_its_members_under_its_own_name(workshop: Path) -> None:
    text = edited(merging("{name: llm}"), (OUTPUT, OUTPUT + "    model: ${model}.${first_model}.onnx\n"))
    emission = plan_of(workshop, text).emissions[EMIT]
    assert emission.parts[0].models == {"llm": "llm.prefill.onnx"}
    assert emission.parts[0].binaries == {name: {"QNNExecutionProvider": "prefill_qnn.bin"} for name in ("prefill", "decode")}


def test_a_fixed_model_name_is_accepted_if_all_models_are_merged(workshop: Path) -> None:
    text = edited(merging("{name: llm}"), (OUTPUT, OUTPUT + "    model: model.onnx\n"), ("[classifier, prefill]", "[classifier]"))
    assert plan_of(workshop, text).emissions[EMIT].parts[0].models == {"llm": "model.onnx"}


def test_every_output_has_its_own_merge_step(workshop: Path) -> None:
    text = merging("{name: llm}") + "  - layout: directory\n    path: other/${group}/${target}\n"
    plan = plan_of(workshop, text)
    assert [step.id for step in plan.steps if step.kind == "merge"] == [MERGE, f"{MERGE}/2"]
    assert plan.emissions[f"{EMIT}-2"].steps == (f"{MERGE}/2", f"{EMIT}-2")


def test_connections_and_prefixes_follow_the_order_of_members(workshop: Path) -> None:
    found = plan_of(workshop, merging("{name: llm, connect: {prefill.a.b: [decode.x, decode.y]}, prefixes: {decode: d_}}"))
    made = found.emissions[EMIT].parts[0].merging
    assert made is not None
    assert made.connections == (Connection(0, "a.b", 1, "x"), Connection(0, "a.b", 1, "y"))
    assert (made.members, made.prefixes) == (("prefill", "decode"), {"prefill": "", "decode": "d_"})


def test_empty_connections_differ_from_omitted_connections(workshop: Path) -> None:
    for text, expected in [("{name: llm}", None), ("{name: llm, connect: {}}", ())]:
        made = plan_of(workshop, merging(text)).emissions[EMIT].parts[0].merging
        assert made is not None
        assert made.connections == expected


def test_a_model_name_is_not_confused_with_a_prefix_of_that_name(workshop: Path) -> None:
    text = edited(
        merging("{name: llm, connect: {prefill.y: prefill.v2.x}}"), ("models: [prefill, decode]", "models: [prefill, prefill.v2]")
    )
    text = edited(text, ("  classifier: models", "  prefill.v2: models/decode.onnx\n  classifier: models"))
    made = plan_of(workshop, text).emissions[EMIT].parts[0].merging
    assert made is not None
    assert made.connections == (Connection(0, "y", 1, "x"),)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("{name: llm, prefixes: {‸decod: d_}}", "EPB234", "'decod' is not a model of the group 'decoder'. Did you mean 'decode'?"),
        ("{name: llm, prefixes: {‸classifier: c_}}", "EPB234", "is not a model of the group 'decoder'. Models of the group: prefill"),
        ("{name: llm, connect: {‸prefil.y: decode.x}}", "EPB234", "Did you mean 'prefill'?"),
        ("{name: llm, connect: {prefill.y: ‸classifier.x}}", "EPB234", "'classifier.x' does not start with the name of a model of"),
        ("{name: llm, connect: {‸prefill: decode.x}}", "EPB235", "'prefill' does not have the form model.value"),
        ("{name: llm, connect: {prefill.y: ‸decode.}}", "EPB235", "'decode.' does not have the form model.value"),
        ("{name: llm, connect: {decode.y: ‸prefill.x}}", "EPB235", "'prefill' does not follow 'decode'"),
        ("{name: llm, connect: {prefill.y: ‸prefill.x}}", "EPB235", "'prefill' does not follow 'prefill'"),
        ("{name: llm, connect: {prefill.y: decode.x, prefill.z: ‸decode.x}}", "EPB235", "'decode.x' is connected twice"),
    ],
)  # fmt: skip
def test_merge_settings_that_do_not_fit_the_group_are_reported_in_place(workshop: Path, text: str, code: str, words: str) -> None:
    assert MARK in text
    recipe, marks = places(merging(text))
    found = problems_of(workshop, recipe)
    assert codes_and_places(found) == [(code, *mark) for mark in marks]
    assert words in found[0].text


def test_merging_a_single_model_is_the_only_problem_reported(workshop: Path) -> None:
    recipe, marks = places(edited(merging(f"{MARK}{{name: llm}}"), ("models: [prefill, decode]", "models: [prefill]")))
    assert codes_and_places(problems_of(workshop, recipe)) == [("EPB234", *mark) for mark in marks]


def test_a_merged_model_cannot_have_the_name_of_a_context_binary(workshop: Path) -> None:
    text = edited(merging("{name: llm}"), (OUTPUT, OUTPUT + "    model: ${model}.bin\n    context_binary: ${first_model}.bin\n"))
    text = edited(text, ("{name: llm}", "{name: prefill}"))
    found = [problem for problem in problems_of(workshop, text) if "merged model 'prefill'" in problem.message]
    assert [problem.code for problem in found] == ["EPB222"]

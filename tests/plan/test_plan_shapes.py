"""Sizes of inputs in a recipe: misfits are refused at their position, and CPU fallback is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from epbuild.core.errors import EpbuildError
from epbuild.plan.shapes import read_stored_header
from tests.support.decoders import INPUTS, OUTPUTS, build, joins
from tests.support.plan_recipes import RECIPE, edited, plan_of, problems_of, write_model, write_models
from tests.support.recipe_texts import MARK, codes_and_places, places

Dims = Sequence[int | str | None]
PHONE = "  decoder:\n    models: [prefill, decode]"
SHARED = "share:decoder/phone"


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    write_models(tmp_path)
    return tmp_path


def recipe(*, model: str = "", member: str = "prefill") -> str:
    """Return the recipe with the settings `model` of the model `prefill`, and with `member` in its place in the group."""
    text = edited(RECIPE, ("prefill: models/prefill.onnx", f"prefill: {{path: models/prefill.onnx{model}}}"))
    return edited(text, (PHONE, f"  decoder:\n    models: [{member}, decode]"))


def write_prefill(folder: Path, *shape: int | str | None, denotation: str = "") -> None:
    write_model(
        folder / "models" / "prefill.onnx", weights={"shared": [4], "prefill.only": [2]}, shape=shape, denotation=denotation
    )


@pytest.mark.parametrize(
    ("shape", "text", "code", "words"),
    [
        ((1, 3), recipe(model=f", input_shapes: {{{MARK}X: [1, 3]}}"), "EPB260", "has no input 'X'. Its inputs: x."),
        (
            (None, 3),
            recipe(model=f", input_shapes: {{x: {MARK}[1, 3, 3]}}"),
            "EPB261",
            "it has 2 dimensions, [?, 3], but 3 sizes are given",
        ),
        ((None, 3), recipe(model=f", input_shapes: {{x: [1, {MARK}4]}}"), "EPB262", "its size is 3 in the model, not 4"),
        (("n", "n"), recipe(model=f", input_shapes: {{x: [1, {MARK}4]}}"), "EPB262", "'n' is both 1 and 4"),
        ((1, 3), recipe(model=f", input_shapes: {{x: [1, {MARK}0]}}"), "EPB106", "at least 1"),
        ((1, 3), recipe(model=f", input_shapes: {{x: [1, {MARK}-3]}}"), "EPB106", "at least 1"),
        ((1, 3), recipe(model=f", input_shapes: {{x: [1, {MARK}x]}}"), "EPB106", "expected a whole number"),
        ((1, 3), recipe(model=f", input_shapes: {{x: {MARK}3}}"), "EPB105", "expected a list"),
        (
            ("n", 3),
            recipe(model=", input_shapes: {x: [1, 3]}", member=f"{{model: prefill, input_shapes: {{x: {MARK}[2, 3]}}}}"),
            "EPB262",
            "[1, 3] in the model",
        ),
        (
            ("n", 3),
            recipe(model=f", input_shapes: {{x: [1, 3]}}, dimensions: {{{MARK}n: 2}}"),
            "EPB262",
            "2 here, 1 in 'input_shapes'",
        ),
        (
            ("batch", 3),
            recipe(model=f", input_shapes: {{x: [1, 3]}}, dimensions: {{{MARK}bacth: 1}}"),
            "EPB263",
            "with the name or denotation 'bacth'. Did you mean 'batch'?",
        ),
        (
            ("batch", 3),
            recipe(model=f", input_shapes: {{x: [1, 3]}}, dimensions: {{{MARK}DATA_BACTH: 1}}"),
            "EPB263",
            "with the name or denotation 'DATA_BACTH'. Did you mean 'DATA_BATCH'?",
        ),
        (
            ("n", "DATA_BATCH"),
            recipe(model=f", dimensions: {{{MARK}DATA_BATCH: 1, n: 1}}"),
            "EPB263",
            "'DATA_BATCH' is ambiguous: the model 'prefill' has a dimension with this name and another with this denotation.",
        ),
        (
            ("n", 3),
            recipe(model=f", dimensions: {{n: 2, {MARK}DATA_BATCH: 1}}"),
            "EPB262",
            "the dimension 'n' of the model 'prefill': 2 by its name, 1 by its denotation 'DATA_BATCH'",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_their_place(workshop: Path, shape: Dims, text: str, code: str, words: str) -> None:
    write_prefill(workshop, *shape, denotation="DATA_BATCH")
    plain, [where] = places(text)
    with pytest.raises(EpbuildError) as refused:
        plan_of(workshop, plain)
    (problem,) = refused.value.problems
    assert codes_and_places([problem]) == [(code, *where)]
    assert words in problem.text


@pytest.mark.parametrize("shape", [("n", 3), (None, 3), (-1, 3), ("?", 3)])
def test_an_open_dimension_is_refused_for_eps_that_need_static_shapes(workshop: Path, shape: Dims) -> None:
    write_prefill(workshop, *shape)
    text, [where] = places(edited(RECIPE, ("  prefill: models", f"  {MARK}prefill: models")))
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB264", *where)]
    shown = "?" if shape[0] in (None, -1) else shape[0]
    assert f"an input with open dimensions, x[{shown}, 3]; QNNExecutionProvider supports static shapes only" in problem.message
    assert problem.hint == "Set the sizes that you need, such as `input_shapes: {x: [1, 3]}`."
    assert problem.lines == ("input_shapes:", "  x: [1, 3]")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ("prepare: [{float16: {}}]", True),
        ("prepare: [{infer_shapes: {}}, {opset: 18}]", True),
        ("prepare: [{float16: {}}], input_shapes: {x: [1, 3]}", False),
        ("prepare: [{float16: {}}], dimensions: {n: 1}", False),
        ("prepare: [{infer_shapes: {}}], dimensions: {u_d1: 1}", False),  # names that the preparation gives
        ("prepare: [{simplify: {}}, {float16: {}}]", False),  # may remove the input
        ("prepare: [{toolchain: qnn, run: [python, '${in}', '${out}']}]", False),
    ],
)
def test_open_dimensions_that_a_preparation_keeps_are_refused_before_it_runs(
    workshop: Path, settings: str, refused: bool
) -> None:
    write_prefill(workshop, "n", 3)
    problems = problems_of(workshop, recipe(model=f", {settings}"))
    assert [problem.code for problem in problems] == ["EPB264"] * refused


@pytest.mark.parametrize("sizes", ["", ", input_shapes: {x: [1, 3]}"])
def test_open_dimensions_of_a_derived_model_are_refused_without_sizes(workshop: Path, sizes: str) -> None:
    write_prefill(workshop, "n", 3)
    copy = "models:\n  copy: {from: prefill, prepare: [{opset: 18}]}\n"
    text = recipe(model=f", prepare: [{{float16: {{}}}}]{sizes}", member="copy").replace("models:\n", copy, 1)
    assert [problem.code for problem in problems_of(workshop, text)] == ([] if sizes else ["EPB264"])


def test_the_suggestion_for_open_dimensions_is_sufficient_yaml(workshop: Path) -> None:
    write_prefill(workshop, "batch", 3, None, None)
    (problem,) = problems_of(workshop)
    assert problem.hint is not None
    suggested = problem.hint.split("`")[1]
    assert yaml.safe_load(suggested) == {"input_shapes": {"x": [1, 3, 224, 224]}}
    assert problems_of(workshop, recipe(model=f", {suggested}")) == ()
    assert problems_of(workshop, recipe(member=f"{{model: prefill, {suggested}}}")) == ()


@pytest.mark.parametrize("kind", ["n: 2", "DATA_BATCH: 2", "n: 2, DATA_BATCH: 2"])
def test_a_free_dimension_with_a_size_is_accepted(workshop: Path, kind: str) -> None:
    write_prefill(workshop, "n", 3, denotation="DATA_BATCH")
    assert problems_of(workshop, recipe(model=f", dimensions: {{{kind}}}")) == ()


@pytest.mark.parametrize(
    "allowed",
    [
        ("share_weights: true\n", "share_weights: true\n    expect: {fallback_nodes: 2}\n"),
        (
            "    ep: QNNExecutionProvider\n    provider_options:\n      backend_type: htp\n      soc_model: SM8750\n",
            (
                "    eps:\n      - {ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}\n"
                "      - {ep: CPUExecutionProvider}\n"
            ),
        ),
    ],
)
def test_an_open_dimension_is_a_warning_if_the_recipe_allows_cpu_fallback(workshop: Path, allowed: tuple[str, str]) -> None:
    write_prefill(workshop, "n", 3)
    plan = plan_of(workshop, edited(RECIPE, allowed))
    assert [problem.code for problem in plan.warnings] == ["EPB264"]


def test_open_dimensions_are_accepted_for_eps_that_support_dynamic_shapes(workshop: Path) -> None:
    write_model(workshop / "models" / "classifier.onnx", weights={"kernel": [3]}, shape=["n", None])
    assert problems_of(workshop) == ()


TWO = "{model: prefill, name: small, input_shapes: {x: [1, 3]}}, {model: prefill, name: large, input_shapes: {x: [4, 3]}}"


def test_one_model_at_two_sizes_is_two_named_members(workshop: Path) -> None:
    write_prefill(workshop, "n", 3)
    plan = plan_of(workshop, edited(RECIPE, (PHONE, f"  decoder:\n    models: [{TWO}]")))
    group = plan.session_groups[SHARED]
    assert [step.id for step in plan.steps if step.action == SHARED] == [
        "compile:decoder/phone/small",
        "compile:decoder/phone/large",
        SHARED,
    ]
    assert [(member.name, member.graph.name, member.source, member.output) for member in group.members] == [
        ("small", "prefill.onnx", "in/small/small.onnx", "out/small_ctx.onnx"),
        ("large", "prefill.onnx", "in/large/large.onnx", "out/large_ctx.onnx"),
    ]
    assert [dict(member.inputs) for member in group.members] == [{"x": (1, 3)}, {"x": (4, 3)}]
    part = plan.emissions["emit:decoder/phone/directory"].parts[0]
    assert part.models == {"small": "small_ctx.onnx", "large": "large_ctx.onnx"}
    assert plan.warnings == (), "they have all their weights in common"


def test_member_names_identify_genai_roles_and_connections(workshop: Path) -> None:
    write_prefill(workshop, "n", 3)
    (workshop / "genai.json").write_text("{}", encoding="utf-8")
    genai = "    genai: {config: genai.json, roles: {prefill: large, decode: small}}\n"
    apart = edited(RECIPE, (PHONE, f"  decoder:\n    models: [{TWO}]"), ("    share_weights: true\n", genai))
    emission = plan_of(workshop, apart).emissions["emit:decoder/phone/directory"]
    assert emission.parts[0].genai is not None
    assert emission.parts[0].genai.roles == {"small": "decode", "large": "prefill"}
    merged = apart.replace(genai, "    merge: {name: both, connect: {small.y: large.x}}\n")
    (merging,) = plan_of(workshop, merged).emissions["emit:decoder/phone/directory"].mergings
    assert merging.members == ("small", "large")


def test_listing_a_model_twice_requires_two_names(workshop: Path) -> None:
    text, [where] = places(edited(RECIPE, (PHONE, f"  decoder:\n    models: [prefill, {{model: {MARK}prefill}}]")))
    (problem,) = problems_of(workshop, text)
    assert codes_and_places([problem]) == [("EPB232", *where)]
    assert problem.hint == "List each model once, or set a different 'name' for one of the entries."


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (f"{{model: prefill, name: {MARK}a/b}}", "invalid name 'a/b'"),
        (f"{{model: {MARK}prefill, name: Decode}}", "differs from"),
        (f"{{model: 'pre*', name: {MARK}two}}", "matches several models"),
    ],
)
def test_a_member_name_that_is_unfit_for_files_and_steps_is_refused(workshop: Path, member: str, words: str) -> None:
    text, [where] = places(edited(RECIPE, (PHONE, f"  decoder:\n    models: [decode, {member}]")))
    with pytest.raises(EpbuildError) as refused:
        plan_of(workshop, text)
    (problem,) = refused.value.problems
    assert codes_and_places([problem])[0][1:] == where
    assert words in problem.message


DECODER_SIZES = "input_ids: [1, 64], past_key_values.0.key: [1, 2, 64, 16]"


@pytest.mark.parametrize(
    "text",
    [
        recipe(model=f", input_shapes: {{{DECODER_SIZES}, attention_mask: [1, {MARK}64]}}"),
        recipe(member=f"{{model: prefill, input_shapes: {{{DECODER_SIZES}, attention_mask: [1, {MARK}64]}}}}"),
        recipe(model=f", prepare: [{{opset: 21}}], input_shapes: {{{DECODER_SIZES}, attention_mask: [1, {MARK}64]}}"),
        edited(
            recipe(model=", dimensions: {batch: 1, seq: 64, past: 64, total: 64}"),
            ("  prefill: {path", f"  {MARK}prefill: {{path"),
        ),
    ],
    ids=["model", "member", "prepared", "dimensions"],
)
def test_a_mask_that_is_too_short_for_a_decoder_is_refused(workshop: Path, text: str) -> None:
    (workshop / "models" / "prefill.onnx").write_bytes(build(INPUTS, OUTPUTS, *joins()))
    clean, [place] = places(text)
    [problem] = dict.fromkeys(problem for problem in problems_of(workshop, clean) if problem.code == "EPB262")
    assert problem.message == (
        "the mask 'attention_mask' of the model 'prefill' covers 64 tokens, but there are 128: 64 in the cache "
        "('past_key_values.0.key') and 64 new ones ('input_ids')"
    )
    assert problem.hint == "Set the last size of 'attention_mask' to 128."
    assert codes_and_places([problem]) == [("EPB262", *place)]


def test_damaged_or_missing_model_in_the_store_has_no_header(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    assert read_stored_header(path) is None
    path.write_bytes(build(INPUTS)[:-5])
    assert read_stored_header(path) is None

"""Configuration for onnxruntime-genai.

tests/e2e/test_genai.py shows that onnxruntime-genai parses it and runs models by it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.catalog.catalog import BUILT_IN
from epbuild.output.genai import GenaiError, Stage, build_genai_config, check_base, check_stages

KEYS = tuple(f"past_{kind}_{layer}" for layer in range(2) for kind in ("key", "value"))
PRESENT = tuple(name.replace("past", "present") for name in KEYS)
BASE: dict[str, Any] = {
    "model": {
        "type": "qwen2",
        "context_length": 128,
        "vocab_size": 256,
        "eos_token_id": [2, 3],
        "pad_token_id": 0,
        "decoder": {
            "filename": "model.onnx",
            "head_size": 24,
            "inputs": {"past_key_names": "past_key_%d", "past_value_names": "past_value_%d"},
            "outputs": {"present_key_names": "present_key_%d", "present_value_names": "present_value_%d"},
            "session_options": {"log_id": "onnxruntime-genai", "intra_op_num_threads": 2, "provider_options": [{"cuda": {}}]},
        },
    },
    "search": {"max_length": 128, "top_p": 0.9},
}
PREFILL = Stage(
    "prefill",
    "prefill",
    "prefill_ctx.onnx",
    ("input_ids", "position_ids", *KEYS),
    ("logits", *PRESENT),
    {"ep.share_ep_contexts": "1"},
    [("QNNExecutionProvider", {"soc_model": "SM8750", "backend_type": "htp"}), ("CPUExecutionProvider", {})],
)
DECODE = replace(PREFILL, role="decode", name="decode", filename="decode_ctx.onnx")
EMBEDDINGS = Stage("embeddings", "embeddings", "embeddings.onnx", ("input_ids",), ("input_hidden_states",))
LM_HEAD = Stage("lm_head", "lm_head", "lm_head.onnx", ("output_hidden_states",), ("logits",))


def written(base: dict[str, Any], *stages: Stage) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(build_genai_config(base, stages).data)
    return document


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    base = copy.deepcopy(BASE)
    change(base["model"])
    return base


def test_prompt_and_token_models_run_in_their_stages() -> None:
    document = written(BASE, DECODE, PREFILL)
    assert document["model"]["type"] == "decoder-pipeline"
    prefill, decode = document["model"]["decoder"]["pipeline"]
    assert prefill == {
        "prefill": {
            "filename": "prefill_ctx.onnx",
            "inputs": ["input_ids", "position_ids", *KEYS],
            "outputs": ["logits", *PRESENT],
            "run_on_prompt": True,
            "run_on_token_gen": False,
            "session_options": {
                "ep.share_ep_contexts": "1",
                "intra_op_num_threads": 2,
                "log_id": "onnxruntime-genai",
                "provider_options": [{"QNN": {"backend_type": "htp", "soc_model": "SM8750"}}],
            },
        }
    }
    assert (decode["decode"]["run_on_prompt"], decode["decode"]["run_on_token_gen"]) == (False, True)


def test_user_settings_of_the_model_and_the_search_are_kept() -> None:
    document = written(BASE, PREFILL, DECODE)
    assert document["search"] == BASE["search"]
    decoder = document["model"]["decoder"]
    for key in ("head_size", "inputs", "outputs"):
        assert decoder[key] == BASE["model"]["decoder"][key]
    # The user's EPs are not those that the models were compiled for, and their file is not shipped.
    assert not {"session_options", "filename"} & set(decoder)
    assert BASE["model"]["type"] == "qwen2"


def test_a_stage_has_the_run_options_of_its_target() -> None:
    document = written(BASE, DECODE, replace(PREFILL, run_options={"qnn.htp_perf_mode": "burst"}))
    prefill, decode = document["model"]["decoder"]["pipeline"]
    assert prefill["prefill"]["run_options"] == {"qnn.htp_perf_mode": "burst"}
    assert "run_options" not in decode["decode"]


def test_embeddings_run_first_and_the_head_last_in_any_role_order() -> None:
    middle = replace(PREFILL, inputs=("input_hidden_states", *KEYS), outputs=("output_hidden_states", *PRESENT))
    both = replace(middle, role="both", name="transformer")
    pipeline = written(BASE, LM_HEAD, both, EMBEDDINGS)["model"]["decoder"]["pipeline"]
    assert [next(iter(stage)) for stage in pipeline] == ["embeddings", "transformer", "lm_head"]
    assert all(body["run_on_prompt"] and body["run_on_token_gen"] for stage in pipeline for body in stage.values())
    assert ["is_lm_head" in body for stage in pipeline for body in stage.values()] == [False, False, True]


def test_rebuilt_configuration_has_equal_bytes() -> None:
    options = {"backend_type": "htp", "soc_model": "SM8750"}
    other = replace(PREFILL, provider_options=[("QNNExecutionProvider", options), ("CPUExecutionProvider", {})])
    assert build_genai_config(BASE, [PREFILL, DECODE]).data == build_genai_config(copy.deepcopy(BASE), [DECODE, other]).data


def test_non_ascii_letters_are_not_escaped_because_genai_reads_no_escapes() -> None:
    assert "ü".encode() in build_genai_config(changed(lambda model: model.update(tokenizer_dir="ü")), [PREFILL, DECODE]).data


def test_eps_have_the_names_that_genai_uses() -> None:
    assert BUILT_IN.genai_provider("NvTensorRTRTXExecutionProvider") == "NvTensorRtRtx"
    assert BUILT_IN.genai_provider("AcmeExecutionProvider") == "AcmeExecutionProvider"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda model: model.pop("context_length"), "model.context_length must be a positive integer"),
        (lambda model: model.update(context_length=True), "model.context_length must be a positive integer"),
        (lambda model: model.update(vocab_size="256"), "model.vocab_size must be a positive integer"),
        (
            lambda model: model.update(eos_token_id=256),
            "model.eos_token_id must be a token id or a list of token ids below model.vocab_size",
        ),
        (lambda model: model.update(decoder=[]), "model.decoder must be an object"),
        (lambda model: model["decoder"].update(session_options="x"), "model.decoder.session_options must be an object"),
        (
            lambda model: model["decoder"].update(inputs={"input_ids": 1}),
            "model.decoder.inputs must be an object whose values are strings",
        ),
        (lambda model: model["decoder"].update(pipeline=[]), "model.decoder.pipeline is written by epbuild; remove it"),
        (lambda model: model.update(vision={}), "model.vision is not allowed in a decoder-pipeline"),
        (lambda model: model.update(pad_token_id=None), "model.pad_token_id has a value that onnxruntime-genai cannot read"),
        (
            lambda model: model.update(tokenizer_dir="\x01"),
            "model.tokenizer_dir has a character that onnxruntime-genai cannot read",
        ),
    ],
)
def test_base_that_genai_cannot_run_is_refused_before_writing(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    base = changed(change)
    assert check_base(base) == [sentence]
    with pytest.raises(GenaiError) as caught:
        build_genai_config(base, [PREFILL, DECODE])
    assert caught.value.sentences == (sentence,)


def test_base_must_be_an_object_with_a_model() -> None:
    assert check_base(BASE) == []
    nothing: list[Any] = [None, [], {}, {"model": 1}]
    for document in nothing:
        assert check_base(document) == ["the configuration is not a JSON object with an object 'model'"]


UNFED = "the stage 'decode' needs the input 'past_seq_len', but no earlier stage computes it and model.decoder.inputs does not list it"
UNCACHED = (
    "the stage 'decode' reads 'past_key_1' from the cache but has no output 'present_key_1' that updates it; name the output in "
    "model.decoder.outputs.present_key_names"
)


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (LM_HEAD, "no model has the role 'decode' or 'both'"),
        (
            replace(PREFILL, role="both"),
            "the role 'both' covers the prompt and each token, so no other model may have the role 'prefill'",
        ),
        (replace(DECODE, name="prefill"), "two stages have the name 'prefill'; onnxruntime-genai treats them as one"),
        (
            replace(DECODE, filename="../decode.onnx"),
            "the stage 'decode' has the file '../decode.onnx', which is outside the configuration's folder",
        ),
        (
            replace(DECODE, provider_options=[("TensorrtExecutionProvider", {})]),
            "the stage 'decode' needs TensorrtExecutionProvider, which onnxruntime-genai does not support",
        ),
        (replace(DECODE, inputs=(*DECODE.inputs, "past_seq_len")), UNFED),
        (
            replace(DECODE, outputs=("hidden", *PRESENT)),
            "no stage that runs on each token has the output 'logits', which model.decoder.outputs.logits names",
        ),
        (replace(DECODE, outputs=("logits", *(name for name in PRESENT if name != "present_key_1"))), UNCACHED),
    ],
)
def test_stages_that_genai_cannot_run_correctly_are_refused(second: Stage, sentence: str) -> None:
    assert sentence in check_stages(BASE, [PREFILL, second])
    with pytest.raises(GenaiError) as caught:
        build_genai_config(BASE, [PREFILL, second])
    assert sentence in caught.value.sentences


def parts_of(stage: Stage, middle: str = "middle") -> list[Stage]:
    """Return two parts of a stage, each with one layer. The first part computes a value for the second."""
    name, first, second = stage.name, (KEYS[:2], PRESENT[:2]), (KEYS[2:], PRESENT[2:])
    return [
        replace(stage, name=f"{name}_0", inputs=("input_ids", *first[0]), outputs=("middle", *first[1])),
        replace(stage, name=f"{name}_1", inputs=(middle, *second[0]), outputs=("logits", *second[1])),
    ]


def test_parts_of_a_role_run_one_after_the_other_in_each_phase() -> None:
    document = written(BASE, *parts_of(DECODE), *parts_of(PREFILL))
    pipeline = document["model"]["decoder"]["pipeline"]
    assert [name for stage in pipeline for name in stage] == ["prefill_0", "prefill_1", "decode_0", "decode_1"]
    assert [stage["run_on_prompt"] for entry in pipeline for stage in entry.values()] == [True, True, False, False]


def test_a_value_that_no_earlier_part_computes_is_refused() -> None:
    [sentence] = check_stages(BASE, [*parts_of(PREFILL), *parts_of(DECODE, middle="other")])
    assert sentence.startswith("the stage 'decode_1' needs the input 'other', but no earlier stage computes it")


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((("float32", (1, 64, 96)), ("float32", (1, 64, 96))), None),
        ((("float32", (1, None, 96)), ("float32", (1, 64, 96))), None),
        (
            (("float32", (1, 64, 96)), ("float16", (1, 64, 96))),
            "as float32 [1, 64, 96], but the stage 'prefill_1' needs float16 [1",
        ),
        (
            (("float32", (1, 64, 96)), ("float32", (1, 1, 96))),
            "as float32 [1, 64, 96], but the stage 'prefill_1' needs float32 [1",
        ),
    ],
)
def test_connected_values_have_one_type_and_shape(ends: tuple[Any, Any], words: str | None) -> None:
    parts = [
        replace(stage, types={"middle": kind}, shapes={"middle": shape})
        for stage, (kind, shape) in zip(parts_of(PREFILL), ends, strict=True)
    ]
    sentences = check_stages(BASE, [*parts, *parts_of(DECODE)])
    assert [f"the stage 'prefill_0' computes 'middle' {words}" in sentence for sentence in sentences] == ([True] if words else [])


def sized(stage: Stage, past: int | str, present: int | str | None) -> Stage:
    shapes = dict.fromkeys(KEYS, (1, 4, past, 24)) | dict.fromkeys(PRESENT, (1, 4, present, 24))
    return replace(stage, shapes=shapes)


def test_cache_with_a_shareable_buffer_is_accepted() -> None:
    unknown = replace(DECODE, shapes={"past_key_0": None})
    for prefill, decode in (
        (sized(PREFILL, 128, 128), sized(DECODE, 128, 128)),
        (sized(PREFILL, 128, None), unknown),
        (sized(PREFILL, "past", "total"), sized(DECODE, "past", "total")),
    ):
        assert check_stages(BASE, [prefill, decode]) == []


@pytest.mark.parametrize(
    ("prefill", "decode", "shapes"),
    [
        (
            sized(PREFILL, 192, 256),
            sized(DECODE, 255, 256),
            (
                "'past_key_0' of the stage 'prefill' is [1, 4, 192, 24], 'present_key_0' of the stage 'prefill' is [1, 4, 256, 24],"
                " 'past_key_0' of the stage 'decode' is [1, 4, 255, 24]"
            ),
        ),
        (
            sized(PREFILL, 128, 128),
            sized(DECODE, 128, 129),
            "'past_key_0' of the stage 'prefill' is [1, 4, 128, 24], 'present_key_0' of the stage 'decode' is [1, 4, 129, 24]",
        ),
        (
            sized(PREFILL, 192, "total"),
            sized(DECODE, 255, None),
            "'past_key_0' of the stage 'prefill' is [1, 4, 192, 24], 'past_key_0' of the stage 'decode' is [1, 4, 255, 24]",
        ),
        (
            sized(PREFILL, 128, 128),
            replace(DECODE, shapes={"past_value_0": (1, 4, 24, 128), "past_key_1": (1, 4, 24)}),
            "'past_key_0' of the stage 'prefill' is [1, 4, 128, 24], 'past_value_0' of the stage 'decode' is [1, 4, 24, 128]",
        ),
    ],
)
def test_cache_that_grows_by_fixed_sizes_is_refused_with_its_shapes(prefill: Stage, decode: Stage, shapes: str) -> None:
    message = f"every run reads and writes the same cache of fixed size, but these shapes differ: {shapes}"
    assert check_stages(BASE, [prefill, decode]) == [f"{message}; the shapes of 1 other layer also differ"]


def test_default_names_of_genai_may_be_omitted() -> None:
    names = {name: name.replace("past_key_", "past_key_values.").replace("past_value_", "past_key_values.") for name in KEYS}
    inputs = tuple(f"{names[name]}.{'key' if 'key' in name else 'value'}" for name in KEYS)
    outputs = tuple(name.replace("past_key_values", "present") for name in inputs)
    stage = replace(PREFILL, role="both", inputs=("input_ids", "attention_mask", *inputs), outputs=("logits", *outputs))
    silent = changed(lambda model: [model["decoder"].pop("inputs"), model["decoder"].pop("outputs")])
    assert check_stages(silent, [stage]) == []

"""Decoders with a key-value cache, and the sizes for their phases."""

from __future__ import annotations

import io
from typing import Any

import pytest
from onnx import TensorProto, helper

from epbuild.onnxfile.read.decoders import Decoder, find_decoder
from epbuild.onnxfile.read.headers import parse_header

INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
INPUTS: dict[str, tuple[int, list[Any]]] = {
    "input_ids": (INT64, ["batch", "seq"]),
    "attention_mask": (INT64, ["batch", "total"]),
    "position_ids": (INT64, ["batch", "seq"]),
    "past_key_values.0.key": (FLOAT, ["batch", 2, "past", 16]),
    "past_key_values.0.value": (FLOAT, ["batch", 2, "past", 16]),
}
OUTPUTS: dict[str, tuple[int, list[Any]]] = {
    "logits": (FLOAT, ["batch", "seq", 256]),
    "present.0.key": (FLOAT, ["batch", 2, "past + seq", 16]),
    "present.0.value": (FLOAT, ["batch", 2, "past + seq", 16]),
}


def find(inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, tuple[int, list[Any]]] = OUTPUTS) -> Decoder | None:
    values = [[helper.make_tensor_value_info(name, *what) for name, what in named.items()] for named in (inputs, outputs)]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "decoder", *values))
    return find_decoder(parse_header(io.BytesIO(model.SerializeToString())))


def test_cache_and_mask_sizes_of_both_phases_agree() -> None:
    decoder = find(INPUTS)
    assert decoder is not None
    prefill, decode = decoder.list_shapes(64, 256), decoder.list_shapes(1, 256)
    assert prefill == {"input_ids": (1, 64), "attention_mask": (1, 256), "past_key_values.0.key": (1, 2, 192, 16)}
    assert decode == {"input_ids": (1, 1), "attention_mask": (1, 256), "past_key_values.0.key": (1, 2, 255, 16)}
    assert decoder.masks == ("attention_mask",)


def test_unnamed_dimensions_get_sizes_for_each_input() -> None:
    decoder = find(
        {name: (kind, [None if isinstance(size, str) else size for size in shape]) for name, (kind, shape) in INPUTS.items()}
    )
    assert decoder is not None
    shapes = decoder.list_shapes(64, 256)
    assert shapes.keys() == INPUTS.keys()
    assert (shapes["position_ids"], shapes["past_key_values.0.value"]) == ((1, 64), (1, 2, 192, 16))


def test_mask_of_four_dimensions_has_new_and_all_tokens() -> None:
    decoder = find({**INPUTS, "attention_mask": (FLOAT, [1, 1, None, None])})
    assert decoder is not None
    assert decoder.list_shapes(64, 256)["attention_mask"] == (1, 1, 64, 256)
    assert decoder.masks == ()


def test_cache_that_keeps_its_size_has_the_whole_context() -> None:
    outputs = {"logits": OUTPUTS["logits"], **{name.replace("past", "present"): INPUTS[name] for name in list(INPUTS)[3:]}}
    decoder = find(INPUTS, outputs)
    assert decoder is not None
    assert {decoder.list_shapes(tokens, 256)["past_key_values.0.key"] for tokens in (64, 1)} == {(1, 2, 256, 16)}


@pytest.mark.parametrize(
    "inputs",
    [
        {name: what for name, what in INPUTS.items() if "past" not in name},
        {**INPUTS, "input_ids": (INT64, [1, 64])},
        {**INPUTS, "past_key_values.0.key": (FLOAT, [1, 2, 192, 16])},
        {name: what for name, what in INPUTS.items() if name != "input_ids"},
    ],
    ids=["no cache", "fixed sequence", "fixed cache", "no tokens"],
)
def test_other_models_are_no_decoders(inputs: dict[str, tuple[int, list[Any]]]) -> None:
    assert find(inputs) is None

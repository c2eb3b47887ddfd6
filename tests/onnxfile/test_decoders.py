"""Decoders with a key-value cache, and the sizes for their phases."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from epbuild.onnxfile.read.decoders import Decoder, ShortMask, find_decoder, find_short_masks
from epbuild.onnxfile.read.headers import parse_header, read_header
from epbuild.onnxfile.read.sizes import apply_shapes, fit_sizes
from tests.support.decoders import FLOAT, INPUTS, INT64, OUTPUTS, build, joins


def find(inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, tuple[int, list[Any]]] = OUTPUTS) -> Decoder | None:
    return find_decoder(parse_header(io.BytesIO(build(inputs, outputs))))


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
    assert shapes["attention_mask"] == (1, 256)


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
        {**INPUTS, "encoder_hidden_states": (FLOAT, ["batch", "frames", 64])},
    ],
    ids=["no cache", "fixed sequence", "fixed cache", "no tokens", "encoder"],
)
def test_other_models_are_no_decoders(inputs: dict[str, tuple[int, list[Any]]]) -> None:
    assert find(inputs) is None


def find_short(
    folder: Path, inputs: dict[str, tuple[int, list[Any]]] = INPUTS, how: str = "Concat", **sizes: int
) -> list[ShortMask]:
    """Return the short masks of a decoder with these sizes of `seq`, `past` and `total`."""
    path = folder / "decoder.onnx"
    path.write_bytes(build(inputs, OUTPUTS, *joins(how)))
    header = read_header(path)
    shapes = {
        name: [size if isinstance(size, int) else sizes.get(size, 1) for size in shape] for name, (_, shape) in inputs.items()
    }
    return find_short_masks(header, apply_shapes(header, fit_sizes(header, shapes).shapes), path)


def test_mask_is_short_if_it_covers_fewer_tokens_than_there_are(tmp_path: Path) -> None:
    [short] = find_short(tmp_path, seq=64, past=64, total=64)
    assert short == ShortMask("attention_mask", 64, "input_ids", 64, "past_key_values.0.key", 64)
    assert find_short(tmp_path, {**INPUTS, "input_ids": (INT64, ["batch", 1])}, past=127, total=127)
    assert find_short(tmp_path, {**INPUTS, "attention_mask": (FLOAT, [1, 1, "seq", "total"])}, seq=64, past=64, total=64)


SHORT = {"seq": 64, "past": 64, "total": 64}


@pytest.mark.parametrize(
    ("inputs", "how", "sizes"),
    [
        (INPUTS, "Concat", {**SHORT, "total": 128}),
        (INPUTS, "Concat", {**SHORT, "total": 256}),
        (INPUTS, "Concat", {**SHORT, "total": 1}),
        (INPUTS, "Add", SHORT),
        ({name: what for name, what in INPUTS.items() if name != "attention_mask"}, "Concat", SHORT),
        ({**INPUTS, "attention_mask": (INT64, ["batch", "seq"])}, "Concat", SHORT),
        ({**INPUTS, "attention_mask": (INT64, ["batch", 64])}, "Concat", SHORT),
        ({**INPUTS, "encoder_attention_mask": (INT64, ["batch", "total"])}, "Concat", SHORT),
        ({**INPUTS, "past_key_values.0.value": (FLOAT, ["batch", 2, "window", 16])}, "Concat", {**SHORT, "window": 32}),
    ],
    ids=["exact", "sliced", "broadcast", "same cache", "no mask", "new tokens only", "fixed", "encoder", "two lengths"],
)
def test_masks_that_may_fit_are_not_reported(
    tmp_path: Path, inputs: dict[str, tuple[int, list[Any]]], how: str, sizes: dict[str, int]
) -> None:
    assert find_short(tmp_path, inputs, how, **sizes) == []


@pytest.mark.parametrize("end", ["x0", "x60"], ids=["tree", "cycle"])
def test_long_or_cyclic_joins_are_followed_once(tmp_path: Path, end: str) -> None:
    nodes = [helper.make_node("Concat", [f"x{number}", f"x{number}"], [f"x{number + 1}"]) for number in range(60)]
    nodes += [helper.make_node("Identity", ["x60"], [name]) for name in OUTPUTS]
    nodes.append(helper.make_node("Identity", [end if end != "x0" else "other"], ["x0"]))
    path = tmp_path / "decoder.onnx"
    path.write_bytes(build(INPUTS, OUTPUTS, *nodes))
    header = read_header(path)
    sizes = {"batch": 1, "seq": 64, "past": 64, "total": 64}
    shapes = {name: [sizes.get(size, size) for size in shape] for name, (_, shape) in INPUTS.items()}
    assert find_short_masks(header, apply_shapes(header, fit_sizes(header, shapes).shapes), path) == []

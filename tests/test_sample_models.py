"""Checked-in sample models: the output of their script, with the properties that the recipes state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

MODELS = Path(__file__).parent.parent / "recipes" / "models"
DECODER = MODELS / "tiny-llm"
Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Cache = dict[str, Floats]

FIXED_MODELS = ["tiny-llm/prefill.onnx", "tiny-llm/decode.onnx", "classifier/classifier.onnx", "classifier/normalize.onnx"]
EVERY_MODEL = [*FIXED_MODELS, "tiny-llm/decoder.onnx"]


def model_files(directory: Path) -> dict[str, Path]:
    return {
        path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.suffix in {".onnx", ".bin", ".npz"}
    }


def external_tensors(path: Path) -> dict[str, dict[str, str]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def test_the_checked_in_models_are_reproducible_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, MODELS / "make_models.py", "--out", tmp_path], check=True)
    export: list[str | Path] = [sys.executable, MODELS / "llm" / "export.py", tmp_path.with_suffix(".onnx")]
    subprocess.run([*export, "--samples", tmp_path / "llm" / "samples" / "tiny"], check=True)
    made, kept = model_files(tmp_path), model_files(MODELS)
    assert made.keys() == kept.keys()
    # Archives name the system on which they were written.
    names = [name for name in made if sys.platform != "win32" or not name.endswith(".npz")]
    changed = [name for name in names if made[name].read_bytes() != kept[name].read_bytes()]
    assert not changed, f"run recipes/models/make_models.py or llm/export.py, and commit what it writes: {changed}"


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_every_model_is_valid_onnx(name: str) -> None:
    onnx.checker.check_model(MODELS / name, full_check=True)


@pytest.mark.parametrize("name", FIXED_MODELS)
def test_every_input_and_output_has_a_fixed_shape(name: str) -> None:
    graph = onnx.load(MODELS / name, load_external_data=False).graph
    for value in [*graph.input, *graph.output]:
        dimensions = value.type.tensor_type.shape.dim
        assert dimensions, value.name
        assert all(dimension.dim_value > 0 for dimension in dimensions), value.name


def test_prefill_and_decode_have_identical_weights() -> None:
    prefill, decode = (external_tensors(DECODER / f"{name}.onnx") for name in ("prefill", "decode"))
    assert prefill == decode
    assert {tensor["location"] for tensor in prefill.values()} == {"weights.bin"}
    end = max(int(tensor["offset"]) + int(tensor["length"]) for tensor in prefill.values())
    assert end == (DECODER / "weights.bin").stat().st_size


def test_decoding_with_the_cache_equals_one_pass_over_all_tokens() -> None:
    prefill = ReferenceEvaluator(str(DECODER / "prefill.onnx"))
    decode = ReferenceEvaluator(str(DECODER / "decode.onnx"))
    tokens = np.random.default_rng(0).integers(0, 256, (1, 64), dtype=np.int32)
    positions = np.arange(64, dtype=np.int32).reshape(1, 64)
    cache_names = [name for name in decode.input_names if name.startswith("past_")]
    empty = {name: np.zeros((1, 4, 128, 24), np.float32) for name in cache_names}

    def run(model: ReferenceEvaluator, ids: Ids, at: Ids, cache: Cache) -> tuple[Floats, Cache]:
        results = model.run(None, {"input_ids": ids, "position_ids": at, **cache})
        outputs = dict(zip(model.output_names, results, strict=True))
        return outputs["logits"], {name: outputs[name.replace("past", "present")] for name in cache_names}

    whole, whole_cache = run(prefill, tokens, positions, empty)

    # The last token is not known yet: decode must overwrite the padding's data in its cache slot.
    padded = tokens.copy()
    padded[0, -1] = (tokens[0, -1] + 1) % 256
    _, cache = run(prefill, padded, positions, empty)
    stepped, stepped_cache = run(decode, tokens[:, -1:], positions[:, -1:], cache)

    np.testing.assert_allclose(stepped[0, -1], whole[0, -1], atol=1e-4)
    for name in cache_names:
        np.testing.assert_allclose(stepped_cache[name], whole_cache[name], atol=1e-4)
    without_past, _ = run(decode, tokens[:, -1:], positions[:, -1:], empty)
    assert np.abs(without_past[0, -1] - whole[0, -1]).max() > 0.1, "the logits do not depend on the cache"


def caches(model: ReferenceEvaluator) -> list[str]:
    return [name for name in model.input_names if name.startswith("past_")]


@pytest.mark.parametrize(("fixed", "sequence"), [("prefill", 64), ("decode", 1)])
def test_the_dynamic_decoder_equals_the_graphs_with_fixed_sizes(fixed: str, sequence: int) -> None:
    models = [ReferenceEvaluator(str(DECODER / f"{name}.onnx")) for name in (fixed, "decoder")]
    random = np.random.default_rng(1)
    tokens = random.integers(0, 256, (1, sequence))
    positions = np.arange(20, 20 + sequence).reshape(1, sequence)
    past = {name: random.standard_normal((1, 4, 128, 24)).astype(np.float32) for name in caches(models[0])}
    results = [
        model.run(None, {"input_ids": tokens.astype(ids), "position_ids": positions.astype(ids), **past})
        for model, ids in zip(models, (np.int32, np.int64), strict=True)
    ]
    assert models[0].output_names == models[1].output_names
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_calibration_samples_fit_the_dynamic_decoder_and_its_caches() -> None:
    model = ReferenceEvaluator(str(DECODER / "decoder.onnx"))
    samples = sorted(DECODER.glob("calibration_*.npz"))
    assert len(samples) == 3
    for path in samples:
        with np.load(path) as sample:
            assert set(sample.files) == set(model.input_names)
            outputs = dict(zip(model.output_names, model.run(None, {name: sample[name] for name in sample.files}), strict=True))
            for name in caches(model):
                assert np.abs(sample[name]).max() >= 0.9 * np.abs(outputs[name.replace("past", "present")]).max(), name


def test_padding_of_a_prompt_does_not_change_the_cache() -> None:
    model = ReferenceEvaluator(str(DECODER / "decoder.onnx"))
    tokens = np.array([[5, 6, 7, 8]])
    past = {name: np.zeros((1, 4, 32, 24), np.float32) for name in caches(model)}
    alone = model.run(None, {"input_ids": tokens, "position_ids": np.arange(4).reshape(1, 4), **past})
    before = ((0, 0), (12, 0))
    padded = model.run(
        None, {"input_ids": np.pad(tokens, before), "position_ids": np.pad(np.arange(4).reshape(1, 4), before), **past}
    )
    np.testing.assert_allclose(padded[0][:, -4:], alone[0], atol=1e-4)
    for expected, found in zip(alone[1:], padded[1:], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)

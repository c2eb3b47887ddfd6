"""Generated inputs: right roles, a fit to the model, and equal values for equal seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.recipe.model import MadeInputs
from epbuild.verify.live.inputs import BadInputs, NoInputs, Sample, make_samples, read_samples

IMAGE = ValueInfo("image", TensorProto.FLOAT, (1, 3, "height", None))
IDS = ValueInfo("ids", TensorProto.INT64, (2,))
INPUTS = (IMAGE, IDS)
PIXELS = np.zeros((1, 3, 4, 5), np.float32)
TOKENS = np.array([1, 2], np.int64)


SIZED = (ValueInfo("image", TensorProto.FLOAT, (1, 3, 4, 5)), IDS)


def made_sample(seed: int, inputs: Sequence[ValueInfo], sizes: Mapping[str, int], **how: Any) -> Sample:
    (sample,) = make_samples(MadeInputs(seed, **how), inputs, sizes)
    return sample


def archive(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


def write_tensor(path: Path, array: Any, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())


def test_a_file_of_arrays_is_one_sample(tmp_path: Path) -> None:
    (sample,) = read_samples(archive(tmp_path, image=PIXELS, ids=TOKENS), INPUTS)
    assert sample.name == "x.npz"
    assert sample.arrays["ids"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": PIXELS}, "x.npz lacks the input 'ids'"),
        (
            {"image": PIXELS, "ids": TOKENS, "more": TOKENS},
            "has 'more', which is not an input of the model; its inputs: image, ids",
        ),
        ({"image": PIXELS.astype(np.float64), "ids": TOKENS}, "'image' in x.npz has the type float64; the model expects float32"),
        ({"image": PIXELS[0], "ids": TOKENS}, r"has the shape \[3, 4, 5\]; the model expects \[1, 3, height, \?\]"),
        ({"image": PIXELS, "ids": TOKENS[:1]}, r"'ids' in x.npz has the shape \[1\]; the model expects \[2\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_expected_form(tmp_path: Path, arrays: Any, words: str) -> None:
    with pytest.raises(BadInputs, match=words):
        read_samples(archive(tmp_path, **arrays), INPUTS)


def test_test_sets_are_read_in_numeric_order_by_name_or_position(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        folder = tmp_path / f"test_data_set_{number}"
        ids = np.array([number, 0], np.int64)
        if number == 2:  # the names decide if they are the model's
            write_tensor(folder / "input_0.pb", ids, "ids")
            write_tensor(folder / "input_1.pb", PIXELS, "image")
        else:
            write_tensor(folder / "input_0.pb", PIXELS)
            write_tensor(folder / "input_1.pb", ids)
        write_tensor(folder / "output_0.pb", PIXELS)
    samples = read_samples(tmp_path, INPUTS)
    assert [sample.name for sample in samples] == ["test_data_set_0", "test_data_set_2", "test_data_set_10"]
    assert [int(sample.arrays["ids"][0]) for sample in samples] == [0, 2, 10]


def test_a_single_test_set_can_be_named(tmp_path: Path) -> None:
    write_tensor(tmp_path / "input_0.pb", np.array(["a", "b"], object))
    (sample,) = read_samples(tmp_path, [ValueInfo("text", TensorProto.STRING, (2,))])
    assert sample.arrays["text"].tolist() == ["a", "b"]


def test_invalid_input_files_are_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no arrays", encoding="utf-8")
    np.save(tmp_path / "one.npy", PIXELS)
    np.savez(tmp_path / "object.npz", image=np.array([{}], object))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/input_0.pb").write_bytes(b"\xff" * 9)
    write_tensor(tmp_path / "many/input_7.pb", PIXELS)
    for name in ("missing.npz", "empty", "text.npz", "one.npy", "object.npz", "set", "many"):
        with pytest.raises(BadInputs, match=name):
            read_samples(tmp_path / name, INPUTS)


def test_equal_seeds_generate_equal_inputs_and_other_seeds_do_not() -> None:
    first, again, other = (made_sample(seed, SIZED, {}) for seed in (1, 1, 2))
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in ("image", "ids"))
    assert not np.array_equal(first.arrays["image"], other.arrays["image"])
    assert (first.name, first.made) == ("seed 1", True)


def test_several_sets_of_one_seed_start_with_the_single_set() -> None:
    sets = make_samples(MadeInputs(5, samples=3), SIZED, {})
    assert [sample.name for sample in sets] == ["seed 5, set 0", "seed 5, set 1", "seed 5, set 2"]
    assert np.array_equal(sets[0].arrays["image"], made_sample(5, SIZED, {}).arrays["image"])
    assert not np.array_equal(sets[0].arrays["image"], sets[1].arrays["image"])


def test_generated_inputs_have_the_dimensions_of_the_recipe() -> None:
    sample = made_sample(0, [ValueInfo("image", TensorProto.FLOAT, (1, 3, "height", 2)), IDS], {"height": 4})
    assert sample.arrays["image"].shape == (1, 3, 4, 2)
    assert (sample.arrays["image"].dtype, sample.arrays["ids"].dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("height", "the size of the dynamic dimension 'height' of the input 'image' is unknown: write its sizes in the recipe"),
        (None, "the size of the unnamed dynamic dimension 1 of the input"),
        (-1, "the size of the unnamed dynamic dimension 1 of the input"),
    ],
)
def test_a_dimension_without_a_size_is_reported_and_not_guessed(size: Any, words: str) -> None:
    with pytest.raises(NoInputs, match=words):
        made_sample(0, [ValueInfo("image", TensorProto.FLOAT, (1, size))], {"width": 4})


def test_generated_numbers_cover_the_range_of_their_input() -> None:
    kinds = {"ids": TensorProto.INT64, "pixels": TensorProto.UINT8, "sound": TensorProto.FLOAT, "flag": TensorProto.BOOL}
    ranges = {"ids": (0.0, 3.0), "pixels": (250.0, 255.0), "sound": (-0.25, 0.5), "flag": (1.0, 1.0)}
    inputs = [ValueInfo(name, kind, (1000,)) for name, kind in kinds.items()]
    arrays = made_sample(0, inputs, {}, ranges=ranges).arrays
    assert sorted(set(arrays["ids"].tolist())) == [0, 1, 2, 3]
    assert (arrays["pixels"].dtype, sorted(set(arrays["pixels"].tolist()))) == (np.uint8, [250, 251, 252, 253, 254, 255])
    assert -0.25 <= arrays["sound"].min() < -0.2
    assert 0.45 < arrays["sound"].max() <= 0.5
    assert arrays["flag"].all()


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (TensorProto.UINT8, (-1.0, 3.0)),
        (TensorProto.INT64, (3.0, 2.0)),
        (TensorProto.INT64, (0.5, 2.0)),
        (TensorProto.FLOAT16, (0.0, 1e6)),
        (TensorProto.FLOAT, (float("nan"), 1.0)),
    ],
)
def test_an_invalid_range_for_an_input_is_refused(kind: int, bounds: tuple[float, float]) -> None:
    with pytest.raises(BadInputs, match=r"the range .* is invalid for the input 'x', whose"):
        made_sample(0, [ValueInfo("x", kind, (2,))], {}, ranges={"x": bounds})


def test_a_glob_and_a_folder_name_files_of_arrays_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 1):
        np.savez(tmp_path / f"set{number}.npz", image=PIXELS, ids=TOKENS + number)
    for place in (tmp_path, tmp_path / "set*.npz"):
        samples = read_samples(place, INPUTS)
        assert [(sample.name, sample.made, sample.arrays["ids"].tolist()) for sample in samples] == [
            ("set1.npz", False, [2, 3]),
            ("set2.npz", False, [3, 4]),
        ]
    with pytest.raises(BadInputs, match="no file matches"):
        read_samples(tmp_path / "none*.npz", INPUTS)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (TensorProto.UINT8, 0, 255),
        (TensorProto.INT8, -128, 127),
        (TensorProto.UINT16, 0, 65535),
        (TensorProto.INT32, 0, 9),
        (TensorProto.INT64, 0, 9),
        (TensorProto.BOOL, 0, 1),
    ],
)
def test_generated_integers_have_a_sensible_range_for_their_type(kind: int, low: int, high: int) -> None:
    values = made_sample(3, [ValueInfo("x", kind, (100_000,))], {}).arrays["x"].astype(np.int64)
    span = high - low
    assert low <= values.min() <= low + span / 10
    assert high - span / 10 <= values.max() <= high


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (ValueInfo("text", TensorProto.STRING, (1,)), "provide them with --inputs"),
        (ValueInfo("x", TensorProto.BFLOAT16, (1,)), "has a type that NumPy does not support"),
        (ValueInfo("x", 0, None), "has a type that NumPy does not support"),
        (ValueInfo("x", TensorProto.FLOAT, None), "unknown rank"),
    ],
)
def test_inputs_that_cannot_be_generated_are_reported_and_not_guessed(value: ValueInfo, words: str) -> None:
    with pytest.raises(NoInputs, match=words):
        made_sample(0, [value], {})


def test_type_names_equal_those_of_onnx() -> None:
    for kind in (
        TensorProto.FLOAT,
        TensorProto.UINT8,
        TensorProto.INT64,
        TensorProto.BOOL,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
    ):
        array = made_sample(0, [ValueInfo("x", kind, (1,))], {}).arrays["x"]
        assert array.dtype == onnx.helper.tensor_dtype_to_np_dtype(kind)


def test_integer_indices_stay_within_their_table_unless_a_range_is_set() -> None:
    inputs = [ValueInfo(name, TensorProto.INT64, (5000,)) for name in ("ids", "types", "other")]
    inputs.append(ValueInfo("codes", TensorProto.UINT8, (5000,)))
    tables = {"ids": 30_522, "types": 2, "codes": 5000}
    (sample,) = make_samples(MadeInputs(), inputs, {}, tables)
    bounds = {name: (int(array.min()), int(array.max())) for name, array in sample.arrays.items()}
    assert bounds["types"] == (0, 1)
    assert bounds["other"] == (0, 9)
    assert bounds["codes"] == (0, 255)
    assert 0 <= bounds["ids"][0] < 1000
    assert 29_000 < bounds["ids"][1] < 30_522
    (sample,) = make_samples(MadeInputs(ranges={"ids": (5, 6)}), inputs, {}, tables)
    assert set(sample.arrays["ids"].tolist()) == {5, 6}

"""What a model is run on: arrays from a `.npz` file, ONNX test sets, or made from a seed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.onnxfile import ValueInfo

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

_SET = re.compile(r"test_data_set_(\d+)")
_INPUT = re.compile(r"input_(\d+)\.pb")
# TensorProto.DataType of what numpy has a type for; the text is NumPy's name of it.
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
# Wide integers are indices or counts more often than not: these are in the range of nearly every table.
_FEW = 10


class BadInputs(ValueError):
    """Inputs that do not fit the model; the text is a sentence."""


class NoInputs(ValueError):
    """Inputs of a kind that cannot be made here; the text is a sentence."""


@dataclass(frozen=True)
class Sample:
    """One set of inputs, by name, and what to call it in a sentence."""

    name: str
    arrays: Arrays


def read_samples(place: Path, inputs: Sequence[ValueInfo]) -> list[Sample]:
    """The inputs in a `.npz` file, by name, or in a folder of ONNX test sets (`test_data_set_*/input_*.pb`), or in one such set.

    Raises BadInputs when they cannot be read, or are not what `inputs` ask for.
    """
    try:
        samples = _test_sets(place, inputs) if place.is_dir() else [_archive(place)]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, BadInputs):
            raise
        raise BadInputs(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for sample in samples:
        _check(sample, inputs)
    return samples


def made_sample(seed: int, inputs: Sequence[ValueInfo], sizes: Mapping[str, int]) -> Sample:
    """Inputs that depend on the seed alone: floats of a normal distribution with deviation 1, integers of 8 and 16 bits from all of
    their range, wider ones from 0 to 9, and booleans. A free dimension is what `sizes` says of its name, else 1.

    Raises NoInputs for texts, and for types that NumPy lacks.
    """
    import numpy as np

    source = np.random.default_rng(seed)
    arrays = {}
    for value in inputs:
        dtype = np.dtype(_type_of(value))
        if value.shape is None:
            raise NoInputs(
                f"the input '{value.name}' has no known rank, so that nothing can be made for it; give it with --inputs"
            )
        shape = tuple(size if isinstance(size, int) else sizes.get(size or "", 1) for size in value.shape)
        if dtype.kind == "f":
            arrays[value.name] = source.standard_normal(shape).astype(dtype)
        elif dtype.kind == "b":
            arrays[value.name] = source.integers(0, 2, shape).astype(dtype)
        elif dtype.kind in "iu":
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if dtype.itemsize < 4 else (0, _FEW)
            arrays[value.name] = source.integers(low, high, shape).astype(dtype)
        else:
            raise NoInputs(f"the input '{value.name}' takes texts, which cannot be made up; give them with --inputs")
    return Sample(f"seed {seed}", arrays)


def _type_of(value: ValueInfo) -> str:
    if value.elem_type not in _TYPES:
        raise NoInputs(f"the input '{value.name}' is of a type that NumPy lacks")
    return _TYPES[value.elem_type]


def _archive(place: Path) -> Sample:
    import numpy as np

    loaded = np.load(place, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise BadInputs(f"{place} is no .npz file; save the inputs by name with numpy.savez")
    with loaded as arrays:
        return Sample(place.name, {name: arrays[name] for name in arrays.files})


def _test_sets(place: Path, inputs: Sequence[ValueInfo]) -> list[Sample]:
    folders = {int(match[1]): path for path in place.iterdir() if (match := _SET.fullmatch(path.name)) and path.is_dir()}
    found = [folders[number] for number in sorted(folders)] or [place]
    samples = [_test_set(folder, inputs) for folder in found]
    if not any(sample.arrays for sample in samples):
        raise BadInputs(f"{place} holds no test set: test_data_set_0/input_0.pb")
    return samples


def _test_set(folder: Path, inputs: Sequence[ValueInfo]) -> Sample:
    """The tensors of a set, by their own names where these are the model's, else by the number in the file's name."""
    import onnx
    from google.protobuf.message import DecodeError

    names = [value.name for value in inputs]
    arrays = {}
    files = {int(match[1]): path for path in folder.iterdir() if (match := _INPUT.fullmatch(path.name))}
    for number, path in sorted(files.items()):
        try:
            tensor = onnx.load_tensor(path)
            array = onnx.numpy_helper.to_array(tensor)
        except (DecodeError, TypeError) as error:
            raise BadInputs(f"{path} holds no tensor: {error}") from error
        if tensor.name not in names and number >= len(names):
            raise BadInputs(f"{path} is one input too many: the model has {len(names)}")
        arrays[tensor.name if tensor.name in names else names[number]] = array.astype(str) if array.dtype.kind == "O" else array
    return Sample(folder.name, arrays)


def _check(sample: Sample, inputs: Sequence[ValueInfo]) -> None:
    wanted = {value.name: value for value in inputs}
    for name in sample.arrays.keys() - wanted.keys():
        raise BadInputs(f"{sample.name} has '{name}', and the model has no such input; it has: {', '.join(wanted)}")
    for name, value in wanted.items():
        array = sample.arrays.get(name)
        if array is None:
            raise BadInputs(f"{sample.name} lacks the input '{name}'")
        asked = _type_of(value)
        if array.dtype.kind != "U" if asked == "str" else array.dtype.name != asked:
            raise BadInputs(f"'{name}' in {sample.name} is of type {array.dtype}; the model takes {asked}")
        if value.shape is not None and not _fits(array.shape, value.shape):
            shape = ", ".join("?" if size is None else str(size) for size in value.shape)
            raise BadInputs(f"'{name}' in {sample.name} has the shape {list(array.shape)}; the model takes [{shape}]")


def _fits(shape: tuple[int, ...], asked: Sequence[int | str | None]) -> bool:
    return len(shape) == len(asked) and all(
        not isinstance(size, int) or size == here for here, size in zip(shape, asked, strict=True)
    )

"""Inputs of a model, from files or a seed, and files of named arrays."""

from __future__ import annotations

import glob
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.safepath import open_regular
from epbuild.core.shown import format_path
from epbuild.core.units import format_count
from epbuild.onnxfile.read.model_header import ValueInfo
from epbuild.plan.verification import CheckedMember
from epbuild.recipe.model import MadeInputs

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

_SET = re.compile(r"test_data_set_(\d+)")
_INPUT = re.compile(r"input_(\d+)\.pb")
# NumPy type names by TensorProto.DataType.
_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
# Upper bound of generated wide integers: most are indices or counts, and nearly every table has at least this many
# rows.
_MAX_WIDE_INTEGER = 10


class BadInputs(ValueError):
    """Error for inputs that do not fit the model. The text is a sentence."""


class NoInputs(ValueError):
    """Error for inputs that cannot be generated. The text is a sentence."""


class Sample(Struct, frozen=True):
    """Set of inputs by name. The `name` of the sample appears in messages."""

    name: str
    arrays: Arrays
    made: bool = False
    """True if the sample was generated from a seed, which makes it weak evidence."""


def read_samples(place: Path, inputs: Sequence[ValueInfo]) -> list[Sample]:
    """Read samples from a `.npz` file, from files that match a glob, or from a folder of `.npz` files or ONNX test sets.

    A test set is a folder `test_data_set_*` with files `input_*.pb`. `place` can also be a test set itself. Raises
    BadInputs if samples cannot be read, or do not fit `inputs`.
    """
    try:
        archives = find_archives(place)
        samples = [_read_archive(file) for file in archives] if archives else _read_test_sets(place, inputs)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, BadInputs):
            raise
        raise BadInputs(f"{format_path(place)} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for sample in samples:
        _check_against(sample, inputs)
    return samples


def load_recipe_samples(
    checked: CheckedMember, inputs: Sequence[ValueInfo], sizes: Mapping[str, int], tables: Mapping[str, int]
) -> list[Sample]:
    """Return the inputs that a recipe requests for a model: read from files, or generated. Raises BadInputs and NoInputs."""
    if checked.made is not None:
        return make_samples(checked.made, inputs, sizes, tables)
    return [replace(sample, name=name) for name, path in checked.inputs.items() for sample in read_samples(path, inputs)]


def find_archives(place: Path) -> list[Path]:
    """Return the `.npz` files at a path, glob or folder, sorted by name. Raises BadInputs for a glob without a match."""
    if place.is_dir():
        return sorted(path for path in place.glob("*.npz") if path.is_file())
    if place.exists() or not glob.has_magic(str(place)):
        return [place]
    found = sorted(path for path in map(Path, glob.glob(str(place), recursive=True)) if path.is_file())  # noqa: PTH207 - absolute globs
    if not found:
        raise BadInputs(f"no file matches {format_path(place)}")
    return found


def make_samples(
    made: MadeInputs, inputs: Sequence[ValueInfo], sizes: Mapping[str, int], tables: Mapping[str, int] = MappingProxyType({})
) -> list[Sample]:
    """Generate inputs that depend only on the seed.

    An input with a range is uniform within the range. An input that indexes a table is uniform over the rows of the
    table; `tables` has the number of rows by input. Other floats have a standard normal distribution. Other 8-bit and
    16-bit integers are uniform over their whole range, and wider integers from 0 to 9. `sizes` has the sizes of free
    dimensions by name. Raises NoInputs for strings, types that NumPy does not support, and dimensions of unknown size.
    Raises BadInputs for a range that an input cannot have.
    """
    import numpy as np

    source = np.random.default_rng(made.seed)
    # The first of several samples equals the only sample for the same seed.
    samples = [
        {value.name: _make_array(source, value, sizes, made.ranges.get(value.name), tables.get(value.name)) for value in inputs}
        for _ in range(made.samples)
    ]
    names = [f"seed {made.seed}" if made.samples == 1 else f"seed {made.seed}, set {number}" for number in range(made.samples)]
    return [Sample(name, arrays, made=True) for name, arrays in zip(names, samples, strict=True)]


def _make_array(
    source: np.random.Generator,
    value: ValueInfo,
    sizes: Mapping[str, int],
    bounds: tuple[float, float] | None,
    rows: int | None,
) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype, shape = np.dtype(_find_type(value)), _make_shape(value, sizes)
    if dtype.kind == "U":
        raise NoInputs(
            f"the input '{value.name}' has the type string, whose values cannot be generated; provide them with --inputs"
        )
    if bounds is not None:
        return _make_array_between(source, value.name, dtype, shape, bounds)
    if dtype.kind == "f":
        return source.standard_normal(shape).astype(dtype)
    low, high = (0, 2) if dtype.kind == "b" else (0, _MAX_WIDE_INTEGER)
    if dtype.kind in "iu":
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if rows is not None:
            low, high = 0, min(rows - 1, most) + 1
        elif dtype.itemsize < 4:
            low, high = least, most + 1
    return source.integers(low, high, shape).astype(dtype)


def _make_array_between(
    source: np.random.Generator, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], bounds: tuple[float, float]
) -> np.ndarray[Any, Any]:
    import numpy as np

    low, high = bounds
    kind = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype) if dtype.kind in "iu" else None
    least, most = (
        (0, 1) if kind is None else (float(kind.min), float(kind.max)) if dtype.kind == "f" else (int(kind.min), int(kind.max))
    )
    if not (math.isfinite(low) and math.isfinite(high) and least <= low <= high <= most):
        raise BadInputs(f"the range {low:g} to {high:g} is invalid for the input '{name}', whose type is {dtype.name}")
    if dtype.kind == "f":
        return source.uniform(low, high, shape).astype(dtype)
    if low != int(low) or high != int(high):
        raise BadInputs(f"the range {low:g} to {high:g} is invalid for the input '{name}', whose values are integers")
    wide = np.uint64 if dtype == np.uint64 else np.int64
    return source.integers(int(low), int(high), shape, dtype=wide, endpoint=True).astype(dtype)


def _make_shape(value: ValueInfo, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a generated input. Raises NoInputs for an unknown size instead of guessing it."""
    if value.shape is None:
        raise NoInputs(f"the input '{value.name}' has an unknown rank, so no values can be generated; provide it with --inputs")
    shape = [size if isinstance(size, int) and size >= 0 else sizes.get(str(size)) for size in value.shape]
    for number, size in enumerate(shape):
        if size is None:
            named = value.shape[number]
            which = f"dynamic dimension '{named}'" if isinstance(named, str) and named else f"unnamed dynamic dimension {number}"
            cure = (
                f"write its sizes in the recipe (`input_shapes: {{{value.name}: [...]}}` of the model), or provide it with "
                f"--inputs"
            )
            raise NoInputs(f"the size of the {which} of the input '{value.name}' is unknown: {cure}")
    return tuple(size for size in shape if size is not None)


def _find_type(value: ValueInfo) -> str:
    if value.elem_type not in _TYPES:
        raise NoInputs(f"the input '{value.name}' has a type that NumPy does not support")
    return _TYPES[value.elem_type]


def _read_archive(place: Path) -> Sample:
    import numpy as np

    with open_regular(place) as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise BadInputs(f"{format_path(place)} is not a .npz file; save the inputs by name with numpy.savez")
        with loaded as arrays:
            return Sample(place.name, {name: arrays[name] for name in arrays.files})


def _read_test_sets(place: Path, inputs: Sequence[ValueInfo]) -> list[Sample]:
    folders = {int(match[1]): path for path in place.iterdir() if (match := _SET.fullmatch(path.name)) and path.is_dir()}
    found = [folders[number] for number in sorted(folders)] or [place]
    samples = [_read_test_set(folder, inputs) for folder in found]
    if not any(sample.arrays for sample in samples):
        raise BadInputs(f"{format_path(place)} contains no test set, such as test_data_set_0/input_0.pb")
    return samples


def _read_test_set(folder: Path, inputs: Sequence[ValueInfo]) -> Sample:
    """Read a test set. A tensor belongs to the input with its name, or else to the input with the number in its file's name."""
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
            raise BadInputs(f"{format_path(path)} contains no tensor: {error}") from error
        if tensor.name not in names and number >= len(names):
            raise BadInputs(
                f"{format_path(path)} does not belong to any input: the model has only {format_count(len(names), 'input')}"
            )
        arrays[tensor.name if tensor.name in names else names[number]] = array.astype(str) if array.dtype.kind == "O" else array
    return Sample(folder.name, arrays)


def _check_against(sample: Sample, inputs: Sequence[ValueInfo]) -> None:
    wanted = {value.name: value for value in inputs}
    for name in sample.arrays.keys() - wanted.keys():
        raise BadInputs(f"{sample.name} has '{name}', which is not an input of the model; its inputs: {', '.join(wanted)}")
    for name, value in wanted.items():
        array = sample.arrays.get(name)
        if array is None:
            raise BadInputs(f"{sample.name} lacks the input '{name}'")
        asked = _find_type(value)
        if array.dtype.kind != "U" if asked == "str" else array.dtype.name != asked:
            raise BadInputs(f"'{name}' in {sample.name} has the type {array.dtype}; the model expects {asked}")
        if value.shape is not None and not _fits(array.shape, value.shape):
            shape = ", ".join("?" if size is None else str(size) for size in value.shape)
            raise BadInputs(f"'{name}' in {sample.name} has the shape {list(array.shape)}; the model expects [{shape}]")


def _fits(shape: tuple[int, ...], asked: Sequence[int | str | None]) -> bool:
    return len(shape) == len(asked) and all(
        not isinstance(size, int) or size == here for here, size in zip(shape, asked, strict=True)
    )


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a `.npz` file. Unlike `numpy.savez`, this function accepts every name."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def write_named_arrays(path: Path, file: Path, names: Sequence[str]) -> None:
    """Write a `.npz` file, and its folder, with the arrays `arr_0`, `arr_1` and so on of another file under their names."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with np.load(file, allow_pickle=False) as arrays:
        write_arrays(path, {name: arrays[f"arr_{index}"] for index, name in enumerate(names)})

"""Weights of models: the place of every tensor's bytes, and equal contents.

Equal bytes are equal weights, whatever their names. Only as much is read as distinguishes two contents: tensors of different sizes
differ, as do tensors whose first bytes differ, and one place in one file is one content.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec import Struct

from epbuild.core.digest import hash_part
from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import Initializer, ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel

_SAMPLE = 4096
# Bits of one element, by TensorProto.DataType. A string has no fixed size.
_BITS = {
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    15: 128,
}


class Weight(NamedTuple):
    """Place of a tensor's bytes. If they are `plain`, as raw data is, different bytes are different contents."""

    file: Path
    start: int
    size: int
    plain: bool


class WeightBytes(Struct, frozen=True):
    """Bytes of the weights of several models.

    `total_bytes` counts a content once for each model that has it, `stored_bytes` once for all models.
    """

    total_bytes: int
    stored_bytes: int


def read_weights(model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """Read the weights of the model file `model`; see `find_weights`."""
    return find_weights(read_header(model), model, data)


def find_weights(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """Return the tensors of a model that have any bytes. `data` maps the locations in the model to the files of its external data.

    Raises MalformedModel if a file is incomplete, OSError if one cannot be accessed.
    """
    weights = []
    for tensor, tag_at, start, end, plain in header.tensors:
        if tensor.external is None:
            weights.append(Weight(model, start, end - start, plain))
            continue
        file = data.get(tensor.external.location)
        if file is None:
            raise MalformedModel(f"the external data {tensor.external.location} is not known", tag_at)
        weights.append(Weight(file, *locate_external(tensor, file.stat().st_size, tag_at), plain=True))
    return tuple(weight for weight in weights if weight.size)


def count_weights(models: Sequence[Iterable[Weight]]) -> WeightBytes:
    """Sum the weights of models, each content once by model, and once for all.

    Reads contents that may be equal, in pieces. Raises MalformedModel if a file became shorter, OSError if one cannot be read.
    """
    weights = [frozenset(model) for model in models]
    samples = _mark(dict.fromkeys(weight for model in weights for weight in model), _read_sample)
    contents = _mark(samples, lambda file, weight: hash_extent(file, weight.start, weight.size))
    by_model = [{contents[weight]: weight.size for weight in model} for model in weights]
    stored = {content: size for model in by_model for content, size in model.items()}
    return WeightBytes(sum(sum(model.values()) for model in by_model), sum(stored.values()))


def estimate_common_bytes(models: Mapping[str, Iterable[Weight]]) -> dict[str, tuple[int, int]]:
    """Return for each model the bytes of weights that another model may have too, and the bytes of all its weights.

    The first is an upper limit: only the sizes and the first bytes of contents are compared. Raises MalformedModel if a file became
    shorter, OSError if one cannot be read.
    """
    weights = {name: tuple(model) for name, model in models.items()}
    samples = _mark(dict.fromkeys(weight for model in weights.values() for weight in model), _read_sample)
    users = Counter(sample for model in weights.values() for sample in {samples[weight] for weight in model})
    return {
        name: (
            sum(weight.size for weight in model if not weight.plain or users[samples[weight]] > 1),
            sum(weight.size for weight in model),
        )
        for name, model in weights.items()
    }


def locate_external(tensor: Initializer, file_size: int, tag_at: int) -> tuple[int, int]:
    """Return the offset and the size of a tensor's bytes in its external data, a file of `file_size` bytes.

    Raises MalformedModel if the file is too short; `tag_at` is the tensor's offset in the model.
    """
    external = tensor.external
    assert external is not None  # noqa: S101 - callers pass tensors with external data
    size = external.length
    if size is None:
        # Readers then derive the size from the type and the shape, and ignore the bytes after it.
        bits = _BITS.get(tensor.elem_type)
        size = max(file_size - external.offset, 0) if bits is None else (math.prod(tensor.dims) * bits + 7) // 8
    end = external.offset + size
    if size < 0 or end > file_size:
        message = f"the tensor '{tensor.name}' needs bytes {external.offset:,} to {end:,} of {external.location}"
        raise MalformedModel(f"{message}, which has {file_size:,}", tag_at)
    return external.offset, size


def hash_extent(file: BinaryIO, start: int, size: int) -> str:
    """Return the SHA-256 of a part of a file, read in pieces. Raises MalformedModel if the file is too short."""
    found = hash_part(file, start, size)
    if found.size < size:
        raise MalformedModel("the file was truncated while it was read", start)
    return found.digest


def _read_sample(file: BinaryIO, weight: Weight) -> bytes:
    file.seek(weight.start)
    wanted = min(weight.size, _SAMPLE)
    sample = file.read(wanted)
    if len(sample) < wanted:
        raise MalformedModel("the file was truncated while it was read", weight.start)
    return sample


def _mark(
    marks: Mapping[Weight, Hashable], read: Callable[[BinaryIO, Weight], Hashable]
) -> dict[Weight, tuple[Hashable, int, Hashable]]:
    """Refine the marks of weights: two weights then have equal marks if their old marks, sizes and what `read` returns are equal.

    Weights without an equal so far are not read.
    """
    classes = defaultdict[tuple[Hashable, int], list[Weight]](list)
    for weight, mark in marks.items():
        classes[mark, weight.size].append(weight)
    refined: dict[Weight, tuple[Hashable, int, Hashable]] = {}
    to_read = defaultdict[Path, list[tuple[Weight, Hashable]]](list)
    for (mark, size), members in classes.items():
        if len(members) == 1:
            refined[members[0]] = (mark, size, b"")
        else:
            for weight in members:
                to_read[weight.file].append((weight, mark))
    for path, wanted in to_read.items():
        with open_regular(path) as file:
            for weight, mark in sorted(wanted, key=lambda item: item[0].start):
                refined[weight] = (mark, weight.size, read(file, weight))
    return refined

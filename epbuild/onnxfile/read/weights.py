"""Weights of models: the position of every tensor's bytes, and equal contents.

Weights are equal if their bytes are equal, whatever their names. Only the bytes needed to distinguish two contents are
read. Tensors with different sizes or different first bytes differ. The same part of the same file is the same content.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from epbuild.core.digest import Count, hash_part, ignore_count
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


class Weight(Struct, frozen=True):
    """Position of a tensor's bytes. If they are `plain`, like raw data, different bytes are different contents."""

    file: Path
    start: int
    size: int
    plain: bool


class WeightBytes(Struct, frozen=True):
    """Bytes of the weights of several models.

    `total_bytes` counts a content once for each model that has it. `stored_bytes` counts it only once.
    """

    total_bytes: int
    stored_bytes: int


def read_weights(model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """Read the weights of the model file `model` as `find_weights` does."""
    return find_weights(read_header(model), model, data)


def find_weights(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """Return the weights of a model, without empty tensors. `data` maps locations to the model's external data files.

    Raises MalformedModel if a file is incomplete. Raises OSError if a file cannot be accessed.
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
    """Count the bytes of the models' weights: once for each model with the same content, and once for each content.

    Contents that may be equal are read in chunks. Raises MalformedModel if a file became shorter. Raises OSError if a file
    cannot be read.
    """
    weights = [frozenset(model) for model in models]
    samples = _mark(dict.fromkeys(weight for model in weights for weight in model), _read_sample)
    contents = _mark(samples, lambda file, weight: hash_extent(file, weight.start, weight.size))
    by_model = [{contents[weight]: weight.size for weight in model} for model in weights]
    stored = {content: size for model in by_model for content, size in model.items()}
    return WeightBytes(sum(sum(model.values()) for model in by_model), sum(stored.values()))


def estimate_common_bytes(models: Mapping[str, Iterable[Weight]]) -> dict[str, tuple[int, int]]:
    """Return two sizes for each model: the bytes of weights that another model may also have, and the bytes of all weights.

    The first size is an upper limit, because only sizes and first bytes of contents are compared. Raises MalformedModel if
    a file became shorter. Raises OSError if a file cannot be read.
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
    """Return the offset and the size of a tensor's bytes in its external data file, which has `file_size` bytes.

    Raises MalformedModel if the file is too short. `tag_at` is the tensor's offset in the model.
    """
    external = tensor.external
    assert external is not None  # noqa: S101 - callers pass tensors with external data
    size = external.length
    if size is None:
        # Without a length, readers derive the size from the type and the shape, and ignore the bytes that follow.
        bits = _BITS.get(tensor.elem_type)
        size = max(file_size - external.offset, 0) if bits is None else (math.prod(tensor.dims) * bits + 7) // 8
    end = external.offset + size
    if size < 0 or end > file_size:
        message = f"the tensor '{tensor.name}' needs bytes {external.offset:,} to {end:,} of {external.location}"
        raise MalformedModel(f"{message}, which has {file_size:,} bytes", tag_at)
    return external.offset, size


def hash_extent(file: BinaryIO, start: int, size: int, count: Count = ignore_count) -> str:
    """Return the SHA-256 of a part of a file, read in chunks. Raises MalformedModel if the file is too short."""
    found = hash_part(file, start, size, count)
    if found.size < size:
        raise MalformedModel("the file was truncated while it was being read", start)
    return found.digest


def _read_sample(file: BinaryIO, weight: Weight) -> bytes:
    file.seek(weight.start)
    wanted = min(weight.size, _SAMPLE)
    sample = file.read(wanted)
    if len(sample) < wanted:
        raise MalformedModel("the file was truncated while it was being read", weight.start)
    return sample


def _mark(
    marks: Mapping[Weight, Hashable], read: Callable[[BinaryIO, Weight], Hashable]
) -> dict[Weight, tuple[Hashable, int, Hashable]]:
    """Return finer marks of weights. Two new marks are equal if the old marks, the sizes and the results of `read` are equal.

    A weight that already differs from all others is not read.
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

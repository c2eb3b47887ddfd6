"""Weights that several models have in common, by content.

Equal bytes are equal weights, whatever they are called. No more is read than is needed to distinguish contents: two tensors of
other sizes differ, as do those that begin with other bytes, and one place in one file is one content.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec import Struct

from epbuild.core.digest import part_digest
from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import ExternalData, Initializer, ModelHeader
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader

_SAMPLE = 4096


class Weight(NamedTuple):
    """Where a tensor's bytes lie; `plain`: as raw data has them, so that other bytes are another content."""

    file: Path
    start: int
    size: int
    plain: bool


class WeightBytes(Struct, frozen=True):
    """The weights of several models: `total_bytes` counts a content once for each model that has it, `stored_bytes` once in all."""

    total_bytes: int
    stored_bytes: int


def read_weights(model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """The weights of the model file at `model`; otherwise as `weights_of`."""
    return weights_of(read_header(model), model, data)


def weights_of(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> tuple[Weight, ...]:
    """The tensors of a model that have any bytes; `data` has the files of its external data by the location that the model names.

    Raises MalformedModel where a file is not whole, OSError where one cannot be looked at.
    """
    return tuple(weight for weight in _weights_of(header, model, data) if weight.size)


def _weights_of(header: ModelHeader, model: Path, data: Mapping[str, Path]) -> Iterator[Weight]:
    for tensor, tag_at, start, end, plain in header.tensors:
        if tensor.external is None:
            yield Weight(model, start, end - start, plain)
            continue
        place = data.get(tensor.external.location)
        if place is None:
            raise MalformedModel(f"the external data {tensor.external.location} is not known", tag_at)
        begin, size = extent(tensor, tensor.external, place.stat().st_size, tag_at)
        yield Weight(place, begin, size, plain=True)


def count_weights(models: Sequence[Iterable[Weight]]) -> WeightBytes:
    """What the weights of models come to, each content once by model, and once in all.

    Reads what may be equal, in pieces. Raises MalformedModel where a file became shorter, OSError where one cannot be read.
    """
    weights = [frozenset(model) for model in models]
    samples = _marks(dict.fromkeys(weight for model in weights for weight in model), _sample)
    contents = _marks(samples, lambda file, weight: digest(file, weight.start, weight.size))
    by_model = [{contents[weight]: weight.size for weight in model} for model in weights]
    stored = {content: size for model in by_model for content, size in model.items()}
    return WeightBytes(sum(sum(model.values()) for model in by_model), sum(stored.values()))


def most_in_common(models: Mapping[str, Iterable[Weight]]) -> dict[str, tuple[int, int]]:
    """How many bytes of each model's weights another model may have too, at most, and how many there are.

    Less than that may be in common, and never more: of two contents, the sizes and the first bytes are compared. Raises MalformedModel
    where a file became shorter, OSError where one cannot be read.
    """
    weights = {name: tuple(model) for name, model in models.items()}
    samples = _marks(dict.fromkeys(weight for model in weights.values() for weight in model), _sample)
    users = Counter(sample for model in weights.values() for sample in {samples[weight] for weight in model})
    return {
        name: (
            sum(weight.size for weight in model if not weight.plain or users[samples[weight]] > 1),
            sum(weight.size for weight in model),
        )
        for name, model in weights.items()
    }


def _sample(file: BinaryIO, weight: Weight) -> bytes:
    file.seek(weight.start)
    wanted = min(weight.size, _SAMPLE)
    sample = file.read(wanted)
    if len(sample) < wanted:
        raise MalformedModel("the file became shorter while it was read", weight.start)
    return sample


def _marks(
    alike: Mapping[Weight, Hashable], read: Callable[[BinaryIO, Weight], Hashable]
) -> dict[Weight, tuple[Hashable, int, Hashable]]:
    """A mark for each weight, by what was alike so far: two have the same one where what is read of them is equal, and their sizes are.

    What no other is alike is not read.
    """
    classes = defaultdict[tuple[Hashable, int], list[Weight]](list)
    for weight, mark in alike.items():
        classes[mark, weight.size].append(weight)
    marks: dict[Weight, tuple[Hashable, int, Hashable]] = {}
    to_read = defaultdict[Path, list[tuple[Weight, Hashable]]](list)
    for (mark, size), members in classes.items():
        if len(members) == 1:
            marks[members[0]] = (mark, size, b"")
        for weight in members if len(members) > 1 else ():
            to_read[weight.file].append((weight, mark))
    for path, wanted in to_read.items():
        with open_regular(path) as file:
            for weight, mark in sorted(wanted, key=lambda item: item[0].start):
                marks[weight] = (mark, weight.size, read(file, weight))
    return marks


# Bits of one element, by TensorProto.DataType; a string has no fixed size.
_BITS = {
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    15: 128,
}


def tensors(wire: WireReader) -> Iterator[tuple[tuple[Field, ...], bool]]:
    """Each tensor of a model, as the fields that lead to it from the outermost inward, and whether it is an initializer."""
    for field in wire.fields(0, wire.size, frozenset({proto.MODEL_GRAPH, proto.MODEL_FUNCTIONS})):
        if field.number == proto.MODEL_GRAPH:
            yield from _tensors_of_graph(wire, (field,))
        else:
            for node in wire.message(field, frozenset({proto.FUNCTION_NODE})):
                yield from _tensors_of_node(wire, (field, node))


def _tensors_of_graph(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    for field in wire.message(path[-1], frozenset({proto.GRAPH_NODE, proto.GRAPH_INITIALIZER, proto.GRAPH_SPARSE_INITIALIZER})):
        if field.number == proto.GRAPH_NODE:
            yield from _tensors_of_node(wire, (*path, field))
        elif field.number == proto.GRAPH_INITIALIZER:
            yield (*path, field), True
        else:
            yield from _parts(wire, (*path, field))


def _tensors_of_node(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    for attribute in wire.message(path[-1], frozenset({proto.NODE_ATTRIBUTE})):
        for value in wire.message(attribute, proto.ATTRIBUTE_TENSORS | proto.ATTRIBUTE_GRAPHS | proto.ATTRIBUTE_SPARSE_TENSORS):
            inner = (*path, attribute, value)
            if value.number in proto.ATTRIBUTE_TENSORS:
                yield inner, False
            elif value.number in proto.ATTRIBUTE_GRAPHS:
                yield from _tensors_of_graph(wire, inner)
            else:
                yield from _parts(wire, inner)


def _parts(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    """The values and the indices of a sparse tensor."""
    for part in wire.message(path[-1], proto.SPARSE_TENSOR_PARTS):
        yield (*path, part), False


def extent(found: Initializer, external: ExternalData, there: int, tag_at: int) -> tuple[int, int]:
    """Where a tensor's bytes lie in its external data, and how many; raises MalformedModel where they are not all `there`.

    That is the size of the data's file in bytes; `tag_at` is where in the model's the tensor begins.
    """
    size = external.length
    if size is None:
        # Readers take the size from the type and the shape then, and do not look at what follows.
        bits = _BITS.get(found.elem_type)
        size = max(there - external.offset, 0) if bits is None else (math.prod(found.dims) * bits + 7) // 8
    if size < 0 or external.offset + size > there:
        message = (
            f"the tensor '{found.name}' needs bytes {external.offset:,} to {external.offset + size:,} of {external.location}"
        )
        raise MalformedModel(f"{message}, which has {there:,}", tag_at)
    return external.offset, size


def digest(file: BinaryIO, start: int, size: int) -> str:
    """The SHA-256 of so many bytes of a file, read in pieces; raises MalformedModel where they are not all there."""
    found = part_digest(file, start, size)
    if found.size < size:
        raise MalformedModel("the file became shorter while it was read", start)
    return found.digest

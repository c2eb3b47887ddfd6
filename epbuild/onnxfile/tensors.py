"""The tensors of a model, and where their bytes lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import BinaryIO

from epbuild.core.digest import part_digest
from epbuild.onnxfile import numbers
from epbuild.onnxfile.model_header import ExternalData, Initializer
from epbuild.onnxfile.wire import Field, MalformedModel, WireReader

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
    for field in wire.fields(0, wire.size, frozenset({numbers.MODEL_GRAPH, numbers.MODEL_FUNCTIONS})):
        if field.number == numbers.MODEL_GRAPH:
            yield from _tensors_of_graph(wire, (field,))
        else:
            for node in wire.message(field, frozenset({numbers.FUNCTION_NODE})):
                yield from _tensors_of_node(wire, (field, node))


def _tensors_of_graph(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    for field in wire.message(
        path[-1], frozenset({numbers.GRAPH_NODE, numbers.GRAPH_INITIALIZER, numbers.GRAPH_SPARSE_INITIALIZER})
    ):
        if field.number == numbers.GRAPH_NODE:
            yield from _tensors_of_node(wire, (*path, field))
        elif field.number == numbers.GRAPH_INITIALIZER:
            yield (*path, field), True
        else:
            yield from _parts(wire, (*path, field))


def _tensors_of_node(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    for attribute in wire.message(path[-1], frozenset({numbers.NODE_ATTRIBUTE})):
        for value in wire.message(
            attribute, numbers.ATTRIBUTE_TENSORS | numbers.ATTRIBUTE_GRAPHS | numbers.ATTRIBUTE_SPARSE_TENSORS
        ):
            inner = (*path, attribute, value)
            if value.number in numbers.ATTRIBUTE_TENSORS:
                yield inner, False
            elif value.number in numbers.ATTRIBUTE_GRAPHS:
                yield from _tensors_of_graph(wire, inner)
            else:
                yield from _parts(wire, inner)


def _parts(wire: WireReader, path: tuple[Field, ...]) -> Iterator[tuple[tuple[Field, ...], bool]]:
    """The values and the indices of a sparse tensor."""
    for part in wire.message(path[-1], numbers.SPARSE_TENSOR_PARTS):
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

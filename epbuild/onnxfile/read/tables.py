"""Sizes of the lookup tables that a model's inputs index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import read_header, read_tensor
from epbuild.onnxfile.read.wire import Field, WireReader, read_integer

_SAME_VALUES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose output contains only values of their first input."""
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity"})
"""Operators whose output has the same shape as their first input."""
_NODE_FIELDS = frozenset({proto.NODE_INPUT, proto.NODE_OUTPUT, proto.NODE_OP_TYPE, proto.NODE_ATTRIBUTE})
_ATTRIBUTE_FIELDS = frozenset({proto.ATTRIBUTE_NAME, proto.ATTRIBUTE_I}) | proto.ATTRIBUTE_TENSORS


class _Node(NamedTuple):
    """Node of the main graph, with its first output and the shape of the tensor in its attributes."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    axis: int
    shape: tuple[int, ...] | None


def find_table_sizes(path: Path) -> dict[str, int]:
    """Return the number of rows in the table that each input indexes with a Gather of the main graph.

    If an input indexes several tables, the smallest counts. Raises MalformedModel and OSError.
    """
    header = read_header(path)
    tables: dict[str, tuple[int, ...]] = {item.name: item.dims for item in header.initializers}
    origins = {value.name: value.name for value in header.inputs}
    sizes: dict[str, int] = {}
    with path.open("rb") as file:
        for node in _read_nodes(WireReader(file)):
            first = node.inputs[0] if node.inputs else ""
            if node.operator == "Constant" and node.shape is not None:
                tables[node.output] = node.shape
            if node.operator in _SAME_SHAPE and first in tables:
                tables[node.output] = tables[first]
            if node.operator in _SAME_VALUES and first in origins:
                origins[node.output] = origins[first]
            if node.operator == "Gather" and len(node.inputs) > 1 and node.inputs[1] in origins:
                dims, name = tables.get(first, ()), origins[node.inputs[1]]
                if -len(dims) <= node.axis < len(dims):
                    sizes[name] = min(dims[node.axis], sizes.get(name, dims[node.axis]))
    return {name: rows for name, rows in sizes.items() if rows > 0}


def _read_nodes(wire: WireReader) -> Iterator[_Node]:
    for graph in wire.fields(0, wire.size, frozenset({proto.MODEL_GRAPH})):
        for field in wire.message(graph, frozenset({proto.GRAPH_NODE})):
            yield _read_node(wire, field)


def _read_node(wire: WireReader, node: Field) -> _Node:
    inputs: list[str] = []
    operator = output = ""
    axis, shape = 0, None
    for field in wire.message(node, _NODE_FIELDS):
        if field.number == proto.NODE_INPUT:
            inputs.append(wire.text(field))
        elif field.number == proto.NODE_OUTPUT:
            output = output or wire.text(field)
        elif field.number == proto.NODE_OP_TYPE:
            operator = wire.text(field)
        else:
            name, number, tensor_shape = _read_attribute(wire, field)
            axis = number if name == "axis" else axis
            shape = tensor_shape if tensor_shape is not None else shape
    return _Node(operator, tuple(inputs), output, axis, shape)


def _read_attribute(wire: WireReader, attribute: Field) -> tuple[str, int, tuple[int, ...] | None]:
    """Return an attribute's name, its integer, and the shape of its tensor."""
    name, number, shape = "", 0, None
    for field in wire.message(attribute, _ATTRIBUTE_FIELDS):
        if field.number == proto.ATTRIBUTE_NAME:
            name = wire.text(field)
        elif field.number == proto.ATTRIBUTE_I:
            number = read_integer(field)
        else:
            shape = read_tensor(wire, field).tensor.dims
    return name, number, shape

"""Sizes of the lookup tables that a model's inputs index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.graph_nodes import read_main_nodes
from epbuild.onnxfile.read.headers import read_header, read_tensor
from epbuild.onnxfile.read.wire import Field, WireReader, read_integer

_SAME_VALUES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose output contains only values of their first input."""
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity"})
"""Operators whose output has the same shape as their first input."""
_ATTRIBUTE_FIELDS = frozenset({proto.ATTRIBUTE_NAME, proto.ATTRIBUTE_I}) | proto.ATTRIBUTE_TENSORS


def find_table_sizes(path: Path) -> dict[str, int]:
    """Return the number of rows in the table that each input indexes with a Gather of the main graph.

    If an input indexes several tables, the smallest counts. Raises MalformedModel and OSError.
    """
    header = read_header(path)
    tables: dict[str, tuple[int, ...]] = {item.name: item.dims for item in header.initializers}
    origins = {value.name: value.name for value in header.inputs}
    sizes: dict[str, int] = {}
    with path.open("rb") as file:
        wire = WireReader(file)
        for node, attributes in read_main_nodes(wire):
            first, output = next(iter(node.inputs), ""), next(iter(node.outputs), "")
            if node.operator == "Constant":
                _, shape = _read_attributes(wire, attributes)
                tables |= {output: shape} if shape is not None else {}
            if node.operator in _SAME_SHAPE and first in tables:
                tables[output] = tables[first]
            if node.operator in _SAME_VALUES and first in origins:
                origins[output] = origins[first]
            if node.operator == "Gather" and len(node.inputs) > 1 and node.inputs[1] in origins:
                axis, _ = _read_attributes(wire, attributes)
                dims, name = tables.get(first, ()), origins[node.inputs[1]]
                if -len(dims) <= axis < len(dims):
                    sizes[name] = min(dims[axis], sizes.get(name, dims[axis]))
    return {name: rows for name, rows in sizes.items() if rows > 0}


def _read_attributes(wire: WireReader, attributes: Iterable[Field]) -> tuple[int, tuple[int, ...] | None]:
    """Return the axis of a node (0 by default), and the shape of the tensor in its attributes."""
    axis, shape = 0, None
    for attribute in attributes:
        name, number = "", 0
        for field in wire.message(attribute, _ATTRIBUTE_FIELDS):
            if field.number == proto.ATTRIBUTE_NAME:
                name = wire.text(field)
            elif field.number == proto.ATTRIBUTE_I:
                number = read_integer(field)
            else:
                shape = read_tensor(wire, field).tensor.dims
        axis = number if name == "axis" else axis
    return axis, shape

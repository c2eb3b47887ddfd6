"""The sizes of inputs in a recipe."""

from __future__ import annotations

from epbuild.recipe.fields import Fields
from epbuild.recipe.model import InputShape
from epbuild.recipe.nodes import KeyedNode, MappingNode, Node


def read_inputs(fields: Fields) -> dict[str, InputShape]:
    """Read the sizes of inputs, by their names; an input with an invalid size is left out."""
    found = {}
    for name, entry in fields.entries.items():
        items = fields.items(name)
        sizes = [_dimension(fields, item) for item in items]
        whole = tuple(size for size in sizes if size is not None)
        if len(whole) == len(sizes):
            found[name] = InputShape(whole, entry.node.where, tuple(item.where for item in items), entry.name_where)
    return found


def _dimension(fields: Fields, node: Node) -> int | None:
    size = fields.of(MappingNode(node.where, {"size": KeyedNode(node.where, node)}, 2, 1)).whole("size")
    return size if size is not None and size >= 1 else None

"""Nodes of a recipe's text: values with their positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from epbuild.core.errors import Position

Scalar = str | int | float | bool
"""Types of a YAML scalar. `null` is refused where a value is needed."""

MAX_NODES = 250_000
"""Maximum number of values of a recipe with all aliases expanded."""

MAX_DEPTH = 50
"""Maximum nesting of values."""

KeyPath = tuple[str | int, ...]
"""Path from the root to a value: keys of mappings and indices of lists."""


class ScalarNode(Struct, frozen=True, tag=True):
    """Scalar: its value, and its text without quotes."""

    where: Position
    value: Scalar | None
    written: str
    size: int = 1
    height: int = 0


class SequenceNode(Struct, frozen=True, tag=True):
    """A list. `gaps` is the number of items that were written and cannot be used."""

    where: Position
    items: tuple[Node, ...]
    size: int
    height: int
    gaps: int = 0


class KeyedNode(NamedTuple):
    """Value in a mapping, and the position of its key."""

    name_where: Position
    node: Node


class MappingNode(Struct, frozen=True, tag=True):
    """Mapping with merge keys applied: its own keys in the order of the text, then the merged ones.

    `gaps` are keys that were written and cannot be used: they have no entry, and are not missing.
    """

    where: Position
    entries: Mapping[str, KeyedNode]
    size: int
    height: int
    gaps: frozenset[str] = frozenset()


Node = ScalarNode | SequenceNode | MappingNode
"""Value in the text. `size` counts it and everything in it with aliases expanded; `height` is its depth."""


def to_plain(node: Node) -> object:
    """Convert a node to dicts, lists and scalars for a schema validator."""
    if isinstance(node, MappingNode):
        return {key: to_plain(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, SequenceNode):
        return [to_plain(item) for item in node.items]
    return node.value


def locate(root: Node, path: KeyPath) -> Node:
    """Return the node at `path`. Raises KeyError or IndexError if there is none."""
    node = root
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str):
            node = node.entries[step].node
        elif isinstance(node, SequenceNode) and isinstance(step, int):
            node = node.items[step]
        else:
            raise KeyError(path)
    return node


def merge_nodes(base: MappingNode, over: MappingNode) -> MappingNode:
    """Overlay `base` with `over`: mappings merge key by key, in the order of `base`; lists and scalars are replaced."""
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        entries[key] = entry
        if below and isinstance(below.node, MappingNode) and isinstance(entry.node, MappingNode):
            entries[key] = KeyedNode(entry.name_where, merge_nodes(below.node, entry.node))
    return MappingNode(over.where, entries, *measure_extent([entry.node for entry in entries.values()]), base.gaps | over.gaps)


def drop_keys(node: MappingNode, keys: Collection[str]) -> MappingNode:
    """Return the mapping without some of its keys."""
    entries = {key: entry for key, entry in node.entries.items() if key not in keys}
    return MappingNode(node.where, entries, *measure_extent([entry.node for entry in entries.values()]), node.gaps)


def prune_paths(node: Node, paths: Collection[KeyPath]) -> Node:
    """Return the node without the values at the `paths` below it, which need not exist. They become gaps."""
    if not paths:
        return node
    below: dict[str | int, list[KeyPath]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    gone = {step for step, rest in below.items() if () in rest}
    if isinstance(node, MappingNode):
        entries = {
            key: KeyedNode(entry.name_where, prune_paths(entry.node, below.get(key, ())))
            for key, entry in node.entries.items()
            if key not in gone
        }
        gaps = node.gaps | {key for key in gone if isinstance(key, str)}
        return MappingNode(node.where, entries, *measure_extent([entry.node for entry in entries.values()]), gaps)
    if isinstance(node, SequenceNode):
        items = [prune_paths(item, below.get(index, ())) for index, item in enumerate(node.items) if index not in gone]
        return SequenceNode(node.where, tuple(items), *measure_extent(items), node.gaps + len(gone))
    return node


def measure_extent(children: Iterable[Node]) -> tuple[int, int]:
    """Return the size and the height of a node with these children."""
    size, height = 1, 0
    for child in children:
        size += child.size
        if child.height >= height:
            height = child.height + 1
    return size, height


def render(value: Scalar) -> str:
    """Return a scalar as text for use in a template. Booleans are written as in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)

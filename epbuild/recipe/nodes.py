"""Nodes of a recipe's text: values with their positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from epbuild.core.errors import Position

Scalar = str | int | float | bool
"""Types of a YAML scalar. `null` is valid only where no value is required."""

MAX_NODES = 250_000
"""Maximum number of values in a recipe with all aliases expanded."""

MAX_DEPTH = 50
"""Maximum nesting depth of values."""

KeyPath = tuple[str | int, ...]
"""Path from the root to a value, made of mapping keys and list indices."""


class ScalarNode(Struct, frozen=True, tag=True):
    """Scalar. `written` is its text without quotes."""

    where: Position
    value: Scalar | None
    written: str
    size: int = 1
    height: int = 0


class SequenceNode(Struct, frozen=True, tag=True):
    """List. `gaps` is the number of items that were removed because they are invalid."""

    where: Position
    items: tuple[Node, ...]
    size: int
    height: int
    gaps: int = 0


class KeyedNode(Struct, frozen=True):
    """Value in a mapping, with the position of its key."""

    name_where: Position
    node: Node


class MappingNode(Struct, frozen=True, tag=True):
    """Mapping with merge keys applied. Its own keys are first, in the order of the text, followed by the merged keys.

    `gaps` has the keys that were removed because their values are invalid. These keys are not reported as missing.
    """

    where: Position
    entries: Mapping[str, KeyedNode]
    size: int
    height: int
    gaps: frozenset[str] = frozenset()


Node = ScalarNode | SequenceNode | MappingNode
"""Value in the text. `size` counts the value and all nested values, with aliases expanded. `height` is its nesting depth."""


def make_scalar(where: Position, value: Scalar) -> ScalarNode:
    return ScalarNode(where, value, render(value))


def make_sequence(where: Position, items: Iterable[Node]) -> SequenceNode:
    nodes = tuple(items)
    return SequenceNode(where, nodes, *measure_extent(nodes))


def make_mapping(where: Position, entries: Mapping[str, KeyedNode], gaps: Iterable[str] = ()) -> MappingNode:
    return MappingNode(where, entries, *measure_extent([entry.node for entry in entries.values()]), frozenset(gaps))


def get_entries(node: Node | None) -> Mapping[str, KeyedNode]:
    """Return the entries of a mapping, or an empty mapping for any other node."""
    return node.entries if isinstance(node, MappingNode) else {}


def get_items(node: Node | None) -> tuple[Node, ...]:
    """Return the items of a list, or an empty tuple for any other node."""
    return node.items if isinstance(node, SequenceNode) else ()


def get_node(entries: Mapping[str, KeyedNode], key: str) -> Node | None:
    """Return the value of a key, or None if the key is absent."""
    entry = entries.get(key)
    return entry.node if entry is not None else None


def get_text(node: Node | None) -> str:
    """Return the text of a scalar, or an empty string for any other node."""
    return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else ""


def expand_scalar(node: Node, key: str) -> Node:
    """Return a scalar as a mapping from `key` to the scalar, and any other node unchanged."""
    return make_mapping(node.where, {key: KeyedNode(node.where, node)}) if isinstance(node, ScalarNode) else node


def replace_entries(node: MappingNode, entries: Mapping[str, KeyedNode]) -> MappingNode:
    """Return a copy of `node` with new entries, or `node` itself if its entries are equal to `entries`.

    Nodes that YAML aliases share are validated only once if they stay the same object.
    """
    return node if entries == node.entries else make_mapping(node.where, entries, node.gaps)


def to_plain(node: Node) -> object:
    """Convert a node to dicts, lists and scalars for a schema validator."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [to_plain(item) for item in node.items]
    # Most values are scalars. Without a call for each of them, this takes half the time.
    return {
        key: entry.node.value if type(entry.node) is ScalarNode else to_plain(entry.node) for key, entry in node.entries.items()
    }


def locate(root: Node, path: KeyPath) -> Node:
    """Return the node at `path`. Raises KeyError or IndexError if the path does not exist."""
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
    """Return `over` merged over `base`. Mappings merge key by key, in the order of `base`. Lists and scalars are replaced."""
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        entries[key] = entry
        if below and isinstance(below.node, MappingNode) and isinstance(entry.node, MappingNode):
            entries[key] = KeyedNode(entry.name_where, merge_nodes(below.node, entry.node))
    return make_mapping(over.where, entries, base.gaps | over.gaps)


def drop_keys(node: MappingNode, keys: Collection[str]) -> MappingNode:
    """Return the mapping without `keys`."""
    entries = {key: entry for key, entry in node.entries.items() if key not in keys}
    return make_mapping(node.where, entries, node.gaps)


def prune_paths(node: Node, paths: Collection[KeyPath]) -> Node:
    """Return the node without the values at `paths`, which become gaps. Ignore paths of values that do not exist."""
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
        return make_mapping(node.where, entries, gaps)
    if isinstance(node, SequenceNode):
        items = [prune_paths(item, below.get(index, ())) for index, item in enumerate(node.items) if index not in gone]
        return SequenceNode(node.where, tuple(items), *measure_extent(items), node.gaps + len(gone))
    return node


def measure_extent(children: Iterable[Node]) -> tuple[int, int]:
    """Return the size and the height of a node with the given children."""
    size, height = 1, 0
    for child in children:
        size += child.size
        if child.height >= height:
            height = child.height + 1
    return size, height


def render(value: Scalar) -> str:
    """Return a scalar as text for a template. Booleans have the spelling of YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)

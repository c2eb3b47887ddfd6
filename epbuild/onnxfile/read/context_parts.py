"""Parts of a context binary, for EPs whose format lists the sizes of its parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.entries import EpEntry
from epbuild.onnxfile.read.payload import Payload

_MAX_HEAD = 1 << 16
"""Number of bytes of a context that are searched for the list."""

PartKind = Literal["graph", "shared weights", "weights"]


class SizePart(Struct, frozen=True):
    """Bytes of a file that belong to a graph, to several graphs, or to named weights."""

    kind: PartKind
    """`graph`, `shared weights` (of several graphs) or `weights` (in a weights file)."""
    name: str
    """Name of the graph or the weights; empty for shared weights. In reports and comparisons, a graph has the name of its model."""
    size: int
    """Number of bytes."""


class NamedNode(Protocol):
    """EPContext node of a header or of a result."""

    @property
    def name(self) -> str: ...

    @property
    def partition_name(self) -> str | None: ...


def list_context_parts(context: Payload, ep: EpEntry | None) -> tuple[SizePart, ...]:
    """Return the parts that a context lists, largest first. The other bytes are headers, tables and padding.

    Return an empty tuple if the EP's format lists no parts. Raises OSError.
    """
    rule = ep.binary.parts if ep is not None else None
    if rule is None:
        return ()
    head = replace(context, size=min(context.size, _MAX_HEAD)).read()
    if re.match(rule.begins.encode(), head) is None:
        return ()
    sizes: dict[tuple[PartKind, str], int] = {}
    for match in re.finditer(rule.part.encode(), head):
        graph = match["graph"]
        key: tuple[PartKind, str] = ("shared weights", "") if graph is None else ("graph", graph.decode(errors="replace"))
        sizes[key] = sizes.get(key, 0) + int.from_bytes(match["size"], "little")
    if sum(sizes.values()) > context.size:
        return ()  # The format has changed.
    return tuple(sorted((SizePart(*key, size) for key, size in sizes.items()), key=lambda part: (-part.size, part.name)))


def label_graphs(model: str, nodes: Sequence[NamedNode]) -> dict[str, str]:
    """Return a label for the graph of each EPContext node, by the graph's name in the context: the model, and the node's number."""
    labels: dict[str, str] = {}
    for number, node in enumerate(nodes):
        label = f"{model}, node {number + 1}" if len(nodes) > 1 else model
        labels |= dict.fromkeys(filter(None, (node.name, node.partition_name)), label)
    return labels

"""Renaming of EPContext nodes in a copy of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from epbuild.onnxfile.headers import parse_header
from epbuild.onnxfile.splice import Splice, context_paths, splice
from epbuild.onnxfile.wire import LENGTH_DELIMITED, Field, WireReader, encode_varint

_NODE_NAME = 3


def rename_nodes(source: Path, destination: Path, names: Mapping[int, str]) -> None:
    """Writes to `destination` a copy of the model `source` in which EPContext nodes have the given names.

    `names` are by the node's place in the header's `ep_context_nodes`. No other part of a model refers to a node by its name;
    `partition_name` is the graph's name in the context, and stays. Raises FileExistsError where `destination` exists, and leaves
    it; MalformedModel and OSError, and leaves no partial copy.
    """

    def renamed(model: BinaryIO) -> list[Splice]:
        parse_header(model)  # refuses what is no whole model, or nested without end
        wire = WireReader(model)
        nodes = enumerate(context_paths(wire))
        return [change for place, path in nodes if place in names for change in _changes(wire, path, names[place].encode())]

    splice(source, destination, renamed)


def _changes(wire: WireReader, path: tuple[Field, ...], name: bytes) -> Iterator[Splice]:
    node = path[-1]
    for field in wire.message(node, frozenset({_NODE_NAME})):
        yield Splice(path, field.tag_at, field.end, b"")
    yield Splice(path, node.end, node.end, encode_varint(_NODE_NAME << 3 | LENGTH_DELIMITED) + encode_varint(len(name)) + name)

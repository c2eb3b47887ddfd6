"""Map of a model's file: its parts, with readable names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.wire import LENGTH_DELIMITED, Field, MalformedModel, WireReader

# Field numbers of onnx.proto, and readable names.
_MODEL = {
    1: "IR version", 2: "producer name", 3: "producer version", 4: "domain", 5: "model version", 6: "doc string", 8: "opset import",
    20: "training graph", 25: "function",
}  # fmt: skip
_GRAPH = {2: "graph name", 10: "graph's doc string", 14: "quantization"}
_NAMED = {5: ("initializer", 8), 11: ("input", 1), 12: ("output", 1), 13: ("value", 1), 15: ("sparse initializer", 0)}
_NODE = {1: "input", 2: "output", 4: "operator", 6: "doc string", 7: "domain", 8: "overload", 9: "metadata", 10: "devices"}

_MAX_NAME = 1 << 16


class ModelPart(Struct, frozen=True):
    """Part of a model's file: `size` bytes from offset `start`. `title` is unique in the file."""

    title: str
    start: int
    size: int


def find_model_parts(path: Path, *, limit: int = 200_000) -> tuple[ModelPart, ...]:
    """Return the named parts of a model's file in file order. Tags and lengths are outside all parts.

    The part of a node's attribute begins at the attribute's text, so that an embedded context is found at its first byte. Raises
    MalformedModel if the file is not a complete model or has more than `limit` parts, which is more than a user would read.
    Raises OSError.
    """
    seen: dict[str, int] = {}
    places: list[ModelPart] = []
    with open_regular(path) as file:
        wire = WireReader(file)
        for title, field in _walk_model(wire):
            seen[title] = count = seen.get(title, 0) + 1
            if len(places) == limit:
                raise MalformedModel(f"the model has more than {limit:,} named parts", field.tag_at)
            start = field.start if field.wire_type == LENGTH_DELIMITED else field.length_at
            places.append(ModelPart(title if count == 1 else f"{title} ({count})", start, field.end - start))
    if not places:
        raise MalformedModel("the file is empty")
    return tuple(places)


def _walk_model(wire: WireReader) -> Iterator[tuple[str, Field]]:
    for field in wire.fields(0, wire.size):
        if field.number == proto.MODEL_GRAPH:
            yield from _walk_graph(wire, field)
        elif field.number == proto.MODEL_METADATA_PROPS:
            yield f"metadata '{_read_text(wire, field, proto.PAIR_KEY)}'", _find_field(wire, field, proto.PAIR_VALUE)
        else:
            yield _MODEL.get(field.number, f"field {field.number} of the model"), field


def _walk_graph(wire: WireReader, graph: Field) -> Iterator[tuple[str, Field]]:
    node = 0
    for field in wire.message(graph):
        if field.number == proto.GRAPH_NODE:
            node += 1
            yield from _walk_node(wire, field, node)
        elif field.number in _NAMED:
            kind, name = _NAMED[field.number]
            yield f"{kind} '{_read_text(wire, field, name)}'" if name else kind, field
        elif field.number == proto.GRAPH_METADATA_PROPS:
            yield f"graph's metadata '{_read_text(wire, field, proto.PAIR_KEY)}'", _find_field(wire, field, proto.PAIR_VALUE)
        else:
            yield _GRAPH.get(field.number, f"field {field.number} of the graph"), field


def _walk_node(wire: WireReader, node: Field, number: int) -> Iterator[tuple[str, Field]]:
    # Nodes are identified by number: two nodes can have the same name, and two files can differ in a name.
    for field in wire.message(node):
        if field.number == proto.NODE_ATTRIBUTE:
            yield (
                f"node {number}, attribute {_read_text(wire, field, proto.ATTRIBUTE_NAME)}",
                _find_field(wire, field, proto.ATTRIBUTE_S),
            )
        else:
            what = "name" if field.number == proto.NODE_NAME else _NODE.get(field.number, f"field {field.number}")
            yield f"node {number}, {what}", field


def _find_field(wire: WireReader, message: Field, number: int) -> Field:
    """Return the field with `number` in a message, or the message itself if it lacks the field."""
    return next((part for part in wire.message(message) if part.number == number), message)


def _read_text(wire: WireReader, message: Field, number: int) -> str:
    """Return the text of the field with `number` in a message. Empty if the field is missing or too long for a name."""
    found = next((part for part in wire.message(message) if part.number == number), None)
    return wire.text(found) if found is not None and found.size <= _MAX_NAME else ""

"""Copies of compiled models with other node names, references or contexts.

Each leaves the source as it is. Raises FileExistsError where the destination exists, and leaves it; MalformedModel and OSError, and leaves
no partial copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from epbuild.onnxfile.edit.splice import Splice, copy_bytes, splice
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.headers import parse_header
from epbuild.onnxfile.read.wire import Field, WireReader, encode_bytes, encode_integer

PROTOBUF_LIMIT: Final = 2**31 - 1
"""Bytes that one protobuf message may have; ONNX Runtime cannot read a model above it."""


def relink(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Writes to `destination` a copy of the model `source` in which each reference that is a key of `names` becomes its value.

    Names are written as given: `check_reference` checks that one can be followed. Other references, and every other byte, stay.
    """

    def relinked(model: BinaryIO) -> list[Splice]:
        splices = []
        for node in parse_header(model).ep_context_nodes:
            if node.reference is not None and names.get(node.reference, node.reference) != node.reference:
                splices.append(_replaced(node.reference_path, names[node.reference].encode()))
        return splices

    splice(source, destination, relinked)


def rename_nodes(source: Path, destination: Path, names: Mapping[int, str]) -> None:
    """Writes to `destination` a copy of the model `source` in which EPContext nodes have the given names.

    `names` are by the node's place in the header's `ep_context_nodes`. No other part of a model refers to a node by its name;
    `partition_name` is the graph's name in the context, and stays.
    """

    def renamed(model: BinaryIO) -> list[Splice]:
        wire, splices = WireReader(model), []
        for place, node in enumerate(parse_header(model).ep_context_nodes):
            if place in names:
                end = node.path[-1].end
                splices += [
                    Splice(node.path, field.tag_at, field.end, b"")
                    for field in wire.message(node.path[-1], frozenset({proto.NODE_NAME}))
                ]
                splices.append(Splice(node.path, end, end, encode_bytes(proto.NODE_NAME, names[place].encode())))
        return splices

    splice(source, destination, renamed)


def embed(source: Path, destination: Path, binary: Path) -> None:
    """Writes to `destination` a copy of the model `source` in which the context is embedded: the content of the file `binary`.

    Raises ValueError unless exactly one node of `source` refers to a context binary. The copy is not checked against `PROTOBUF_LIMIT`: it
    has about the bytes of both files.
    """

    def embedded(model: BinaryIO) -> list[Splice]:
        nodes = parse_header(model).ep_context_nodes
        referring = [node for node in nodes if node.reference is not None]
        if len(referring) != 1:
            raise ValueError(f"{len(referring)} nodes refer to a context binary where one belongs")
        return [_replaced(referring[0].reference_path, binary), *_modes(WireReader(model), nodes, 1)]

    splice(source, destination, embedded)


def extract(source: Path, destination: Path, binary: Path, reference: str) -> None:
    """Writes the context that the model `source` embeds to the new file `binary`, and to `destination` a copy that refers to it.

    `reference` is written as given. Raises ValueError unless exactly one node of `source` embeds a context; then, too, no file is left.
    """

    def extracted(model: BinaryIO) -> list[Splice]:
        nodes = parse_header(model).ep_context_nodes
        embedding = [node for node in nodes if node.payload is not None]
        if len(embedding) != 1:
            raise ValueError(f"{len(embedding)} nodes embed a context where one belongs")
        path = embedding[0].payload_path
        with binary.open("xb") as file:
            made.append(binary)
            copy_bytes(model, file, path[-1].start, path[-1].end)
        return [_replaced(path, reference.encode()), *_modes(WireReader(model), nodes, 0)]

    made: list[Path] = []
    try:
        splice(source, destination, extracted)
    except BaseException:
        for path in made:
            path.unlink()
        raise


def _replaced(path: tuple[Field, ...], content: bytes | Path) -> Splice:
    """Other content of the last field of `path`."""
    return Splice(path, path[-1].start, path[-1].end, content)


def _modes(wire: WireReader, nodes: Sequence[EPContextNode], mode: int) -> list[Splice]:
    """Sets embed_mode in every EPContext node: those without a context of their own have the mode of the one they are in."""
    setting = encode_bytes(proto.ATTRIBUTE_NAME, b"embed_mode") + encode_integer(proto.ATTRIBUTE_I, mode)
    encoded = encode_bytes(proto.NODE_ATTRIBUTE, setting + encode_integer(proto.ATTRIBUTE_TYPE, proto.TYPE_INT))
    splices = []
    for path in (node.path for node in nodes):
        written = [
            attribute
            for attribute in wire.message(path[-1], frozenset({proto.NODE_ATTRIBUTE}))
            if any(wire.text(name) == "embed_mode" for name in wire.message(attribute, frozenset({proto.ATTRIBUTE_NAME})))
        ]
        splices += [Splice(path, attribute.tag_at, attribute.end, encoded) for attribute in written]
        if not written:
            splices.append(Splice(path, path[-1].end, path[-1].end, encoded))
    return splices

"""Embedding and extracting the context binary of a compiled model."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

from epbuild.onnxfile.headers import parse_header
from epbuild.onnxfile.splice import Splice, context_paths, copy_bytes, splice
from epbuild.onnxfile.wire import LENGTH_DELIMITED, VARINT, Field, WireReader, encode_varint

PROTOBUF_LIMIT: Final = 2**31 - 1
"""Bytes that one protobuf message may have; ONNX Runtime cannot read a model above it."""

_NODE_ATTRIBUTE = 5
_ATTRIBUTE_NAME = 1
_ATTRIBUTE_I = 3
_ATTRIBUTE_S = 4
_ATTRIBUTE_TYPE = 20
_TYPE_INT = 2


def embed(source: Path, destination: Path, binary: Path) -> None:
    """Writes to `destination` a copy of the model `source` in which the context is embedded: the content of the file `binary`.

    Raises ValueError unless exactly one node of `source` refers to a context binary; FileExistsError, MalformedModel and OSError,
    and leaves no partial copy. The copy is not checked against `PROTOBUF_LIMIT`: it has about the bytes of both files.
    """

    def embedded(model: BinaryIO) -> list[Splice]:
        referring = [node for node in parse_header(model).ep_context_nodes if node.reference is not None]
        if len(referring) != 1:
            raise ValueError(f"{len(referring)} nodes refer to a context binary where one belongs")
        path = referring[0].reference_path
        return [Splice(path, path[-1].start, path[-1].end, binary), *_modes(WireReader(model), 1)]

    splice(source, destination, embedded)


def extract(source: Path, destination: Path, binary: Path, reference: str) -> None:
    """Writes the context that the model `source` embeds to the new file `binary`, and to `destination` a copy that refers to it.

    `reference` is written as given. Raises ValueError unless exactly one node of `source` embeds a context; FileExistsError,
    MalformedModel and OSError, and leaves no partial file.
    """

    def extracted(model: BinaryIO) -> list[Splice]:
        payloads = [node.payload for node in parse_header(model).ep_context_nodes if node.payload is not None]
        if len(payloads) != 1:
            raise ValueError(f"{len(payloads)} nodes embed a context where one belongs")
        (offset, size) = payloads[0]
        wire = WireReader(model)
        path = next(path for node in context_paths(wire) if (path := _context_path(wire, node, offset)))
        with binary.open("xb") as file:
            made.append(binary)
            copy_bytes(model, file, offset, offset + size)
        return [Splice(path, offset, offset + size, reference.encode()), *_modes(wire, 0)]

    made: list[Path] = []
    try:
        splice(source, destination, extracted)
    except BaseException:
        for path in made:
            path.unlink()
        raise


def _context_path(wire: WireReader, node: tuple[Field, ...], offset: int) -> tuple[Field, ...]:
    """The fields that lead to the string at `offset` if it is an attribute's of `node`, else none."""
    for attribute in wire.message(node[-1], frozenset({_NODE_ATTRIBUTE})):
        for text in wire.message(attribute, frozenset({_ATTRIBUTE_S})):
            if text.start == offset:
                return (*node, attribute, text)
    return ()


def _modes(wire: WireReader, mode: int) -> list[Splice]:
    """Sets embed_mode in every EPContext node: those without a context of their own have the mode of the one they are in."""
    encoded = _integer_attribute("embed_mode", mode)
    splices = []
    for node in context_paths(wire):
        attributes = [
            attribute
            for attribute in wire.message(node[-1], frozenset({_NODE_ATTRIBUTE}))
            if any(wire.text(name) == "embed_mode" for name in wire.message(attribute, frozenset({_ATTRIBUTE_NAME})))
        ]
        splices += [Splice(node, attribute.tag_at, attribute.end, encoded) for attribute in attributes]
        if not attributes:
            splices.append(Splice(node, node[-1].end, node[-1].end, encoded))
    return splices


def _integer_attribute(name: str, value: int) -> bytes:
    """An attribute of a node, as the field of it that protobuf writes."""
    text = name.encode()
    attribute = b"".join(
        (
            encode_varint(_ATTRIBUTE_NAME << 3 | LENGTH_DELIMITED),
            encode_varint(len(text)),
            text,
            encode_varint(_ATTRIBUTE_I << 3 | VARINT),
            encode_varint(value),
            encode_varint(_ATTRIBUTE_TYPE << 3 | VARINT),
            encode_varint(_TYPE_INT),
        )
    )
    return encode_varint(_NODE_ATTRIBUTE << 3 | LENGTH_DELIMITED) + encode_varint(len(attribute)) + attribute

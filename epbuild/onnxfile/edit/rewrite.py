"""Copies of compiled models with changed node names, references or contexts.

No function changes its `source`. Each function raises MalformedModel and OSError. If the destination exists, it raises
FileExistsError and keeps that file. No partial copy is left. Only `raise_max_sizes` replaces models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from epbuild.core.atomic import new_file
from epbuild.onnxfile.edit.splice import Splice, copy_bytes, splice
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.epcontext import EPContextNode
from epbuild.onnxfile.read.headers import parse_header, read_header
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer

PROTOBUF_LIMIT: Final = 2**31 - 1
"""Maximum size of a protobuf message. ONNX Runtime cannot read a larger model."""


class NewNames(NamedTuple):
    """New names of an EPContext node."""

    name: str
    partition_name: str | None = None
    """None keeps the attribute."""


def relink(source: Path, destination: Path, names: Mapping[str, str]) -> None:
    """Copy the model `source`, and replace each reference that is a key of `names` by the value.

    Values are written as given, so callers must use `check_reference` first. Other references and all other bytes stay the
    same.
    """

    def find_changes(model: BinaryIO) -> list[Splice]:
        splices = []
        for node in parse_header(model).ep_context_nodes:
            if node.reference is not None and names.get(node.reference, node.reference) != node.reference:
                splices.append(_replace_field(node.reference_path, names[node.reference].encode()))
        return splices

    splice(source, destination, find_changes)


def rename_nodes(source: Path, destination: Path, names: Mapping[int, NewNames]) -> None:
    """Copy the model `source`, and rename EPContext nodes. `names` has new names by index in the header's `ep_context_nodes`.

    No other part of a model refers to a node by its name.
    """

    def find_changes(model: BinaryIO) -> list[Splice]:
        wire, splices = WireReader(model), []
        for place, node in enumerate(parse_header(model).ep_context_nodes):
            if place in names:
                name, partition_name = names[place]
                end = node.path[-1].end
                splices += [
                    Splice(node.path, field.tag_at, field.end, b"")
                    for field in wire.message(node.path[-1], frozenset({proto.NODE_NAME}))
                ]
                splices.append(Splice(node.path, end, end, encode_bytes(proto.NODE_NAME, name.encode())))
                if partition_name is not None:
                    splices += _set_attribute(wire, node, "partition_name", partition_name)
        return splices

    splice(source, destination, find_changes)


def set_max_sizes(source: Path, destination: Path, sizes: Mapping[str, int]) -> None:
    """Copy the model `source`, and set max_size in each node whose reference is a key of `sizes` to the value."""

    def find_changes(model: BinaryIO) -> list[Splice]:
        wire = WireReader(model)
        nodes = [node for node in parse_header(model).ep_context_nodes if node.reference in sizes]
        return [change for node in nodes for change in _set_attribute(wire, node, "max_size", sizes[node.reference or ""])]

    splice(source, destination, find_changes)


def embed(source: Path, destination: Path, binary: Path) -> None:
    """Copy the model `source` with an embedded context, which is the content of the file `binary`.

    Raises ValueError unless exactly one node of `source` refers to a context binary. The caller must check that both files
    together do not exceed `PROTOBUF_LIMIT`.
    """

    def find_changes(model: BinaryIO) -> list[Splice]:
        nodes = parse_header(model).ep_context_nodes
        referring = [node for node in nodes if node.reference is not None]
        if len(referring) != 1:
            raise ValueError(f"expected one node that refers to a context binary, found {len(referring)}")
        return [_replace_field(referring[0].reference_path, binary), *_set_modes(WireReader(model), nodes, 1)]

    splice(source, destination, find_changes)


def extract(source: Path, destination: Path, binary: Path, reference: str) -> None:
    """Write the embedded context of the model `source` to the new file `binary`, and copy the model with a reference to it.

    `reference` is written as given. Raises ValueError unless exactly one node of `source` embeds a context. After an error,
    no file is left.
    """

    def find_changes(model: BinaryIO) -> list[Splice]:
        nodes = parse_header(model).ep_context_nodes
        embedding = [node for node in nodes if node.payload is not None]
        if len(embedding) != 1:
            raise ValueError(f"expected one node that embeds a context, found {len(embedding)}")
        path = embedding[0].payload_path
        with binary.open("xb") as file:
            written.append(binary)
            copy_bytes(model, file, path[-1].start, path[-1].end)
        return [_replace_field(path, reference.encode()), *_set_modes(WireReader(model), nodes, 0)]

    written: list[Path] = []
    try:
        splice(source, destination, find_changes)
    except BaseException:
        for path in written:
            path.unlink()
        raise


def _replace_field(path: tuple[Field, ...], content: bytes | Path) -> Splice:
    """Return the change that replaces the content of the last field in `path`."""
    return Splice(path, path[-1].start, path[-1].end, content)


def _set_modes(wire: WireReader, nodes: Sequence[EPContextNode], mode: int) -> list[Splice]:
    """Return the changes that set embed_mode in every EPContext node.

    A node without its own context has the mode of the context that contains its graph.
    """
    return [change for node in nodes for change in _set_attribute(wire, node, "embed_mode", mode)]


def _set_attribute(wire: WireReader, node: EPContextNode, name: str, value: int | str) -> list[Splice]:
    """Return the changes that set an attribute of an EPContext node, which may have it already."""
    if isinstance(value, int):
        encoded = encode_integer(proto.ATTRIBUTE_I, value) + encode_integer(proto.ATTRIBUTE_TYPE, proto.TYPE_INT)
    else:
        encoded = encode_bytes(proto.ATTRIBUTE_S, value.encode()) + encode_integer(proto.ATTRIBUTE_TYPE, proto.TYPE_STRING)
    setting = encode_bytes(proto.NODE_ATTRIBUTE, encode_bytes(proto.ATTRIBUTE_NAME, name.encode()) + encoded)
    path = node.path
    written = [
        attribute
        for attribute in wire.message(path[-1], frozenset({proto.NODE_ATTRIBUTE}))
        if any(wire.text(field) == name for field in wire.message(attribute, frozenset({proto.ATTRIBUTE_NAME})))
    ]
    if not written:
        return [Splice(path, path[-1].end, path[-1].end, setting)]
    return [Splice(path, attribute.tag_at, attribute.end, setting) for attribute in written]


def raise_max_sizes(models: Sequence[Path]) -> None:
    """Set the `max_size` of each context binary to the largest of all nodes that refer to it.

    An EP writes the size for the graphs compiled so far, so only the last model of a group has the size of the whole context.
    ONNX Runtime's tool `ep_weight_sharing_ctx_gen` makes the same change. Missing or malformed models are skipped, because the
    verifier reports them. Raises OSError.
    """
    read: dict[Path, dict[str, int]] = {}
    for model in models:
        try:
            nodes = read_header(model).ep_context_nodes
        except (MalformedModel, FileNotFoundError):
            continue
        read[model] = {}
        for node in nodes:
            if node.reference is not None:
                read[model][node.reference] = max(node.max_size, read[model].get(node.reference, 0))
    largest: dict[str, int] = {}
    for sizes in read.values():
        for reference, size in sizes.items():
            largest[reference] = max(size, largest.get(reference, 0))
    for model, sizes in read.items():
        changes = {reference: largest[reference] for reference, size in sizes.items() if size != largest[reference]}
        if changes:
            with new_file(model, durable=False) as draft:  # in the staging directory, which is temporary
                set_max_sizes(model, draft, changes)

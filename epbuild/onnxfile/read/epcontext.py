"""EPContext nodes and the files that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.digest import hash_bytes
from epbuild.core.safepath import BadReference, MissingReference, locate, shorten_reference
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.wire import Field, WireReader, read_integer

DOMAIN: Final = "com.microsoft"
OP_TYPE: Final = "EPContext"

# Names of AttributeProto.AttributeType, by number.
_TYPES = {
    0: "UNDEFINED", 1: "FLOAT", 2: "INT", 3: "STRING", 4: "TENSOR", 5: "GRAPH", 6: "FLOATS", 7: "INTS", 8: "STRINGS", 9: "TENSORS",
    10: "GRAPHS", 11: "SPARSE_TENSOR", 12: "SPARSE_TENSORS", 13: "TYPE_PROTO", 14: "TYPE_PROTOS",
}  # fmt: skip

_NODE_FIELDS = frozenset({proto.NODE_NAME, proto.NODE_ATTRIBUTE})
_ATTRIBUTE_FIELDS = frozenset({proto.ATTRIBUTE_NAME, proto.ATTRIBUTE_I, proto.ATTRIBUTE_S, proto.ATTRIBUTE_TYPE})

_CONTEXT = "ep_cache_context"
COMPATIBILITY: Final = "ep_compatibility_info."
"""Prefix of the metadata keys under which ONNX Runtime stores compatibility strings of EPs."""
WEIGHTLESS_MODE: Final = "weightless_mode"
"""Metadata key with the weights that the contexts lack: external data (1), or all (2). Contexts of EPs may lack weights without it."""
_SCHEMA_INTEGERS = frozenset({"main_context", "embed_mode", "max_size"})
_SCHEMA_TEXTS = frozenset({"ep_sdk_version", "onnx_model_filename", "hardware_architecture", "partition_name", "source", "notes"})
_SCHEMA = _SCHEMA_INTEGERS | _SCHEMA_TEXTS | {_CONTEXT}
SCHEMA_TYPES: Final[Mapping[str, str]] = {name: "INT" if name in _SCHEMA_INTEGERS else "STRING" for name in sorted(_SCHEMA)}
"""Required type of every attribute in the operator's schema."""

# A longer string in an attribute outside the schema is a payload, not a readable setting.
_MAX_OTHER = 64 * 1024


class EPContextNode(Struct, frozen=True):
    """`com.microsoft::EPContext` node, with the attributes of the schema or their defaults.

    `reference` is the path of the context binary as written (embed_mode 0). `payload` is the position of the embedded
    context in the file, as (offset, bytes) (embed_mode 1). Both are None if the node has no `ep_cache_context`, as with
    main_context 0.

    `others` has the integers and strings of attributes outside the schema, except strings over 64 KiB. `unread` describes
    every other attribute by its type, its size and the SHA-256 of its first 64 KiB. `depth` is the number of subgraphs that
    enclose the node, 0 in the main graph.

    `path` has the fields that enclose the node, from the model's graph inward. `reference_path` and `payload_path` lead to
    the text of the reference or the payload, or are empty. `written` has the name and type of each attribute in file order,
    including duplicates.
    """

    name: str
    partition_name: str | None = None
    source: str | None = None
    main_context: int = 1
    embed_mode: int = 1
    ep_sdk_version: str | None = None
    onnx_model_filename: str | None = None
    hardware_architecture: str | None = None
    notes: str | None = None
    max_size: int = 0
    reference: str | None = None
    payload: tuple[int, int] | None = None
    others: Mapping[str, int | str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    path: tuple[Field, ...] = ()
    reference_path: tuple[Field, ...] = ()
    payload_path: tuple[Field, ...] = ()
    written: tuple[tuple[str, str], ...] = ()

    @property
    def declaration(self) -> EPContextNode:
        """Copy without positions in the file and without unread attributes, for comparison with a node of another file."""
        return replace(self, unread={}, path=(), reference_path=(), payload_path=(), written=())


def read_node(wire: WireReader, path: tuple[Field, ...]) -> EPContextNode:
    """Read the EPContext node at the end of `path`, which leads from the model's graph inward. Raises MalformedModel."""
    name = ""
    integers: dict[str, int] = {}
    texts: dict[str, str] = {}
    written: list[tuple[str, str]] = []
    unread: dict[str, str] = {}
    context: tuple[Field, ...] = ()
    for part in wire.message(path[-1], _NODE_FIELDS):
        if part.number == proto.NODE_NAME:
            name = wire.text(part)
            continue
        attribute, kind, number, text = _read_attribute(wire, part)
        written.append((attribute, _TYPES.get(kind, f"type {kind}")))
        if number is not None:
            integers[attribute] = number
        elif text is not None and attribute == _CONTEXT:
            # Do not read the value yet: embed_mode may follow, and it decides whether the value is a path or the compiled
            # context itself.
            context = (*path, part, text)
        elif text is not None and (attribute in _SCHEMA_TEXTS or text.size <= _MAX_OTHER):
            texts[attribute] = wire.text(text)
        elif attribute != _CONTEXT:
            head = hash_bytes(wire.head(part, _MAX_OTHER))
            unread[attribute] = f"{_TYPES.get(kind, f'type {kind}')} of {part.size} bytes, {head[:12]}"

    embed_mode = integers.get("embed_mode", 1)
    refers = bool(context) and embed_mode == 0
    others: dict[str, int | str] = {key: value for key, value in integers.items() if key not in _SCHEMA}
    others.update((key, value) for key, value in texts.items() if key not in _SCHEMA)
    return EPContextNode(
        name=name,
        **{attribute: texts.get(attribute) for attribute in _SCHEMA_TEXTS},
        main_context=integers.get("main_context", 1),
        embed_mode=embed_mode,
        max_size=integers.get("max_size", 0),
        reference=wire.text(context[-1]) if refers else None,
        payload=(context[-1].start, context[-1].size) if context and not refers else None,
        others=others,
        unread=unread,
        # Each enclosing subgraph adds three fields: a node, its attribute, and the graph.
        depth=(len(path) - 2) // 3,
        path=path,
        reference_path=context if refers else (),
        payload_path=() if refers else context,
        written=tuple(written),
    )


def resolve(model: Path, node: EPContextNode) -> Path:
    """Return the path of a node's context binary. The node's reference is relative to the folder of `model`.

    Raises BadReference if the node has no reference or a reference that EPs reject. Raises MissingReference if the file
    does not exist.
    """
    if node.reference is None:
        held = "embeds its context" if node.payload else "has no ep_cache_context"
        raise BadReference(f"EPContext node '{node.name}' refers to no file: it {held}")
    try:
        return locate(model.parent, node.reference, "context binary")
    except MissingReference as error:
        raise MissingReference(
            f"the context binary '{shorten_reference(node.reference)}' does not exist beside '{model.name}'"
        ) from error


def read_compatibility(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the compatibility strings in a model's metadata, by EP. An EP later compares its string with a device."""
    return {name.removeprefix(COMPATIBILITY): value for name, value in metadata.items() if name.startswith(COMPATIBILITY)}


def _read_attribute(wire: WireReader, attribute: Field) -> tuple[str, int, int | None, Field | None]:
    """Return an attribute's name, the number of its type, its value as an integer, and the field that contains its value as a string."""
    name = ""
    number: int | None = None
    text: Field | None = None
    kind = 0
    for part in wire.message(attribute, _ATTRIBUTE_FIELDS):
        if part.number == proto.ATTRIBUTE_NAME:
            name = wire.text(part)
        elif part.number == proto.ATTRIBUTE_I:
            number = read_integer(part)
        elif part.number == proto.ATTRIBUTE_S:
            text = part
        else:
            kind = read_integer(part)
    if kind == proto.TYPE_INT and number is None:
        # Writers that omit zeros, as proto3 does, mean 0 here instead of the schema's default.
        number = 0
    return name, kind, number, text

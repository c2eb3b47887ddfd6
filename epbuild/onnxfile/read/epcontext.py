"""EPContext nodes, and the files that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from epbuild.core.digest import digest_of
from epbuild.core.safepath import BadReference, MissingReference, locate, shortened
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.wire import Field, WireReader, integer

DOMAIN: Final = "com.microsoft"
OP_TYPE: Final = "EPContext"

# AttributeProto.AttributeType, by number.
_TYPES = {
    0: "UNDEFINED", 1: "FLOAT", 2: "INT", 3: "STRING", 4: "TENSOR", 5: "GRAPH", 6: "FLOATS", 7: "INTS", 8: "STRINGS", 9: "TENSORS",
    10: "GRAPHS", 11: "SPARSE_TENSOR", 12: "SPARSE_TENSORS", 13: "TYPE_PROTO", 14: "TYPE_PROTOS",
}  # fmt: skip

_NODE_FIELDS = frozenset({proto.NODE_NAME, proto.NODE_ATTRIBUTE})
_ATTRIBUTE_FIELDS = frozenset({proto.ATTRIBUTE_NAME, proto.ATTRIBUTE_I, proto.ATTRIBUTE_S, proto.ATTRIBUTE_TYPE})

_CONTEXT = "ep_cache_context"
COMPATIBILITY: Final = "ep_compatibility_info."
"""What the metadata keys begin with under which ONNX Runtime keeps the EPs' compatibility strings."""
_SCHEMA_INTEGERS = frozenset({"main_context", "embed_mode", "max_size"})
_SCHEMA_TEXTS = frozenset({"ep_sdk_version", "onnx_model_filename", "hardware_architecture", "partition_name", "source", "notes"})
_SCHEMA = _SCHEMA_INTEGERS | _SCHEMA_TEXTS | {_CONTEXT}
SCHEMA_TYPES: Final[Mapping[str, str]] = {name: "INT" if name in _SCHEMA_INTEGERS else "STRING" for name in sorted(_SCHEMA)}
"""Every attribute of the operator's schema, with the type that it must have."""

# A longer string of an attribute that only its EP knows is a payload, not a setting that a person would read.
_LONGEST_OTHER = 64 * 1024


@dataclass(frozen=True)
class EPContextNode:
    """One `com.microsoft::EPContext` node: the schema's attributes, with its defaults where it has them.

    `reference` is the path of the context binary as written (embed_mode 0); `payload` is where the embedded context lies in the
    file, as (offset, bytes) (embed_mode 1). Both are None where the node has no `ep_cache_context`, as those with main_context 0.
    `others` holds the integers and strings of attributes that are not in the schema, less strings over 64 KiB.
    `unread` has, for each attribute of another kind, its type, its bytes and the SHA-256 of up to 64 KiB of it.
    `depth` is how many subgraphs the node is in: 0 in the main graph.
    `path` are the fields that lead to the node, from the model's graph inward; `reference_path` and `payload_path` lead to the text of the
    one or the other, and are empty where there is none.
    `written` has the name and the type of each attribute that the node really has, in file order, repeated ones too.
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
    unread: Mapping[str, str] = field(default_factory=dict, compare=False)
    depth: int = 0
    path: tuple[Field, ...] = field(default=(), repr=False, compare=False)
    reference_path: tuple[Field, ...] = field(default=(), repr=False, compare=False)
    payload_path: tuple[Field, ...] = field(default=(), repr=False, compare=False)
    written: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)


def read_node(wire: WireReader, path: tuple[Field, ...]) -> EPContextNode:
    """Reads the EPContext node that is the last field of `path`, from the model's graph inward; raises MalformedModel."""
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
            # Not read yet: only embed_mode, which may follow, shows whether this is a path or the compiled context itself.
            context = (*path, part, text)
        elif text is not None and (attribute in _SCHEMA_TEXTS or text.size <= _LONGEST_OTHER):
            texts[attribute] = wire.text(text)
        elif attribute != _CONTEXT:
            head = digest_of(wire.head(part, _LONGEST_OTHER))
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
        # Each subgraph on the way adds itself, the attribute that holds it and the node that has that.
        depth=(len(path) - 2) // 3,
        path=path,
        reference_path=context if refers else (),
        payload_path=() if refers else context,
        written=tuple(written),
    )


def resolve(model: Path, node: EPContextNode) -> Path:
    """The context binary that `node` of the model file `model` refers to: the reference, from the model's directory.

    Raises BadReference where the node has no reference or one that EPs refuse, MissingReference where no such file exists.
    """
    if node.reference is None:
        held = "embeds its context" if node.payload else "has no ep_cache_context"
        raise BadReference(f"EPContext node '{node.name}' refers to no file: it {held}")
    try:
        return locate(model.parent, node.reference, "context binary")
    except MissingReference as error:
        raise MissingReference(
            f"the context binary '{shortened(node.reference)}' does not exist beside '{model.name}'"
        ) from error


def compatibility(metadata: Mapping[str, str]) -> dict[str, str]:
    """What each EP wrote into a model's metadata, to decide later whether the model fits a device, by the EP's name."""
    return {name.removeprefix(COMPATIBILITY): value for name, value in metadata.items() if name.startswith(COMPATIBILITY)}


def _read_attribute(wire: WireReader, attribute: Field) -> tuple[str, int, int | None, Field | None]:
    """The attribute's name, its type's number, and its integer or the field of its string."""
    name = ""
    number: int | None = None
    text: Field | None = None
    kind = 0
    for part in wire.message(attribute, _ATTRIBUTE_FIELDS):
        if part.number == proto.ATTRIBUTE_NAME:
            name = wire.text(part)
        elif part.number == proto.ATTRIBUTE_I:
            number = integer(part)
        elif part.number == proto.ATTRIBUTE_S:
            text = part
        else:
            kind = integer(part)
    if kind == proto.TYPE_INT and number is None:
        # Writers that leave out zeros, as proto3 does, mean 0 here and not the schema's default.
        number = 0
    return name, kind, number, text

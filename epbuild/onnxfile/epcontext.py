"""EPContext nodes: what one says about its compiled context, and which file it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Final

from epbuild.onnxfile.wire import Field, WireReader, integer

DOMAIN: Final = "com.microsoft"
OP_TYPE: Final = "EPContext"

_NODE_NAME = 3
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_NAME = 1
_ATTRIBUTE_I = 3
_ATTRIBUTE_S = 4
_ATTRIBUTE_TYPE = 20
_TYPE_INT = 2

_NODE_FIELDS = frozenset({_NODE_NAME, _NODE_ATTRIBUTE})
_ATTRIBUTE_FIELDS = frozenset({_ATTRIBUTE_NAME, _ATTRIBUTE_I, _ATTRIBUTE_S, _ATTRIBUTE_TYPE})

_CONTEXT = "ep_cache_context"
_SCHEMA_INTEGERS = frozenset({"main_context", "embed_mode", "max_size"})
_SCHEMA_TEXTS = frozenset({"ep_sdk_version", "onnx_model_filename", "hardware_architecture", "partition_name", "source", "notes"})
_SCHEMA = _SCHEMA_INTEGERS | _SCHEMA_TEXTS | {_CONTEXT}

# A longer string of an attribute that only its EP knows is a payload, not a setting that a person would read.
_LONGEST_OTHER = 64 * 1024


class BadReference(ValueError):
    """An EPContext node's reference cannot be followed; the text is one sentence that says why."""


class MissingReference(BadReference):
    """The reference is well formed, but there is no such file."""


@dataclass(frozen=True)
class EPContextNode:
    """One `com.microsoft::EPContext` node: the schema's attributes, with its defaults where it has them.

    `reference` is the path of the context binary as written (embed_mode 0); `payload` is where the embedded context lies in the
    file, as (offset, bytes) (embed_mode 1). Both are None where the node has no `ep_cache_context`, as those with main_context 0.
    `others` holds the integers and strings of attributes that are not in the schema, less strings over 64 KiB.
    `reference_path` is what an edit of the reference must change: the fields that enclose its text, from the model's graph
    inward, and last the text itself; empty where there is no reference.
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
    reference_path: tuple[Field, ...] = field(default=(), repr=False, compare=False)


def read_node(wire: WireReader, path: tuple[Field, ...]) -> EPContextNode:
    """Reads the EPContext node that is the last field of `path`, the fields that enclose it from the model's graph inward.

    Raises MalformedModel.
    """
    name = ""
    integers: dict[str, int] = {}
    texts: dict[str, str] = {}
    context: tuple[Field, ...] = ()
    for part in wire.message(path[-1], _NODE_FIELDS):
        if part.number == _NODE_NAME:
            name = wire.text(part)
            continue
        attribute, number, text = _read_attribute(wire, part)
        if number is not None:
            integers[attribute] = number
        elif text is not None and attribute == _CONTEXT:
            # Not read yet: only embed_mode, which may follow, says whether this is a path or the compiled context itself.
            context = (*path, part, text)
        elif text is not None and (attribute in _SCHEMA_TEXTS or text.size <= _LONGEST_OTHER):
            texts[attribute] = wire.text(text)

    embed_mode = integers.get("embed_mode", 1)
    refers = bool(context) and embed_mode == 0
    others: dict[str, int | str] = {key: value for key, value in integers.items() if key not in _SCHEMA}
    others.update((key, value) for key, value in texts.items() if key not in _SCHEMA)
    return EPContextNode(
        name=name,
        partition_name=texts.get("partition_name"),
        source=texts.get("source"),
        main_context=integers.get("main_context", 1),
        embed_mode=embed_mode,
        ep_sdk_version=texts.get("ep_sdk_version"),
        onnx_model_filename=texts.get("onnx_model_filename"),
        hardware_architecture=texts.get("hardware_architecture"),
        notes=texts.get("notes"),
        max_size=integers.get("max_size", 0),
        reference=wire.text(context[-1]) if refers else None,
        payload=(context[-1].start, context[-1].size) if context and not refers else None,
        others=others,
        reference_path=context if refers else (),
    )


def resolve(model: Path, node: EPContextNode) -> Path:
    """The context binary that `node` of the model file `model` refers to: the reference, from the model's directory.

    Raises BadReference where the node has no reference or one that EPs refuse, MissingReference where no such file exists.
    """
    if node.reference is None:
        held = "embeds its context" if node.payload else "has no ep_cache_context"
        raise BadReference(f"EPContext node '{node.name}' refers to no file: it {held}.")
    check_reference(node.reference)
    binary = model.parent / node.reference
    try:
        found = binary.is_file()
    except OSError:  # a name too long for the file system, or a directory that may not be entered
        found = False
    if not found:
        raise MissingReference(f"The context binary '{node.reference}' does not exist beside '{model.name}'.")
    return binary


def check_reference(reference: str) -> None:
    """Raises BadReference unless `reference` is a relative path that stays in the model's directory on every platform."""
    if not reference:
        raise BadReference("The reference to the context binary is empty.")
    windows = PureWindowsPath(reference)
    # Windows rules also see every absolute POSIX path, and drive-relative paths, which leave the directory as well.
    if windows.drive or windows.root:
        raise BadReference(f"The reference '{reference}' is an absolute path; it must be relative to the model's directory.")
    if "\\" in reference:
        raise BadReference(f"The reference '{reference}' has a backslash; its parts must be separated by '/'.")
    if ".." in reference.split("/"):
        raise BadReference(f"The reference '{reference}' has '..'; it must stay in the model's directory.")
    if "\0" in reference:
        raise BadReference(f"The reference {reference!r} has a NUL character, which no file name can have.")


def _read_attribute(wire: WireReader, attribute: Field) -> tuple[str, int | None, Field | None]:
    """The attribute's name, and its integer or the field of its string."""
    name = ""
    number: int | None = None
    text: Field | None = None
    kind = 0
    for part in wire.message(attribute, _ATTRIBUTE_FIELDS):
        if part.number == _ATTRIBUTE_NAME:
            name = wire.text(part)
        elif part.number == _ATTRIBUTE_I:
            number = integer(part)
        elif part.number == _ATTRIBUTE_S:
            text = part
        else:
            kind = integer(part)
    if kind == _TYPE_INT and number is None:
        # Writers that leave out zeros, as proto3 does, mean 0 here and not the schema's default.
        number = 0
    return name, number, text

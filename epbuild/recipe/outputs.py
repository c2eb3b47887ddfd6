"""Reader of outputs, and the properties of their layouts and packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from epbuild.core.errors import Position, Problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import Compression, CompressionMethod, Layout, OutputSpec, Pack, Reference, Setting
from epbuild.recipe.nodes import MappingNode, ScalarNode
from epbuild.recipe.problems import WRONG_VALUE, quoted
from epbuild.recipe.template import OUTPUT_NAMES

LATER = dict.fromkeys(("path", "model", "context_binary", "base", "component", "push"), OUTPUT_NAMES)
"""The texts of an output that may hold names which only a group and a target give."""

_DEFAULT_MODEL = "${model}_ctx.onnx"
_DEFAULT_CONTEXT_BINARY = "${first_model}_${ep.short}.bin"
# The most that a level may be, and what it is by default. Beyond 19 zstd wants far more memory, also of the user who unpacks.
_LEVELS: Mapping[CompressionMethod, tuple[int, int]] = {"zstd": (19, 3), "deflate": (9, 6)}

Match = Callable[[str, Position, str], tuple[str, ...] | None]
"""The names that a glob matches in a section of the recipe; None where they are not known."""


class LayoutForm(Struct, frozen=True):
    """What is to be known of a layout."""

    prefix: str
    """Goes before the name of a pack in the ids of steps."""
    gathers: bool = False
    """Whether all groups and targets of one path are one output: each has a folder of its own there, and each model is a component."""


class PackForm(Struct, frozen=True):
    """What is to be known of a pack."""

    method: CompressionMethod
    """What it may be compressed by."""
    is_file: bool = False
    """Whether the output is one file, which is named by the pack."""
    always: bool = False
    """Whether it is compressed in any case: then its level alone is enough."""
    hint: str = ""
    """What else may be taken, where another method is asked for."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why another method is not taken, by its name."""


LAYOUT_FORMS: Mapping[Layout, LayoutForm] = {
    "directory": LayoutForm(""),
    "ort-model-package": LayoutForm("ort-model-package.", gathers=True),
}

PACK_FORMS: Mapping[Pack, PackForm] = {
    # Only what all readers of zip archives know: many do not open one with members by zstd.
    "zip": PackForm(
        "deflate",
        is_file=True,
        hint=", or take 'pack: tar.zst', which zstd compresses",
        refused={"zstd": ": many programs could not open it"},
    ),
    "tar.zst": PackForm("zstd", is_file=True, always=True),
    "oci": PackForm("zstd"),
}


def read_output(fields: MappingReader, match: Match) -> OutputSpec:
    layout: Any = fields.text("layout") or "directory"  # the schema wants one; the rest of the recipe is read on without
    pack: Any = fields.text("pack")
    return OutputSpec(
        where=fields.where,
        layout=layout,
        path=fields.setting("path") or Setting("", fields.where, fields.where),
        model=fields.setting("model") or Setting(_DEFAULT_MODEL, fields.where, fields.where),
        context_binary=fields.setting("context_binary") or Setting(_DEFAULT_CONTEXT_BINARY, fields.where, fields.where),
        base=fields.setting("base"),
        component=fields.setting("component"),
        groups=_chosen(fields, "groups", match),
        targets=_chosen(fields, "targets", match),
        pack=pack,
        push=fields.setting("push"),
        compression=_compression(fields, pack),
        provenance=fields.flag("provenance"),
        bom=fields.flag("bom"),
    )


def _compression(fields: MappingReader, pack: Pack | None) -> Compression | None:
    """How an output is compressed: a method, a method and its level, or the level of the one method of a `tar.zst`."""
    form = PACK_FORMS.get(pack) if pack is not None else None
    entry = fields.entries.get("compression")
    if form is None:
        return None  # without a pack, the schema refuses it
    method = form.method
    most, default = _LEVELS[method]
    if entry is None:
        return Compression(method, default) if form.always else None
    example = f"{{method: {method}, level: {default}}}"
    level: int | None = None
    asked: str | None = method
    where = entry.node.where
    if isinstance(entry.node, MappingNode):
        own = fields.mapping("compression")
        asked, level = own.text("method"), own.integer("level")
        level_where = own.where_of("level")
        where = own.where_of("method")
    elif isinstance(entry.node, ScalarNode) and isinstance(entry.node.value, str):
        asked = fields.text("compression")
    else:
        level, level_where = fields.integer("compression"), where
        if not form.always:
            message = f"a level alone does not state by which method 'pack: {pack}' is compressed"
            fields.problems.append(Problem(WRONG_VALUE, message, where, f"Write {method}, or {example}."))
            return None
    if asked != method:
        hint = f"Write {method}, or {example}{form.hint}."
        reason = form.refused.get(asked or "", "")
        fields.problems.append(
            Problem(WRONG_VALUE, f"'pack: {pack}' is not compressed by {quoted(asked or '')}{reason}", where, hint)
        )
        return None
    if level is not None and not 1 <= level <= most:
        fields.problems.append(Problem(WRONG_VALUE, f"the level of {method} must be between 1 and {most}", level_where))
        return None
    return Compression(method, default if level is None else level)


def _chosen(fields: MappingReader, key: str, match: Match) -> tuple[Reference, ...] | None:
    """The groups or targets that an output is for, each once; None: all, or they are not known."""
    if key not in fields.entries:
        return None
    found: dict[str, Reference] = {}
    for pattern, where in fields.texts(key):
        names = match(pattern, where, key)
        if names is None:
            return None
        for name in names:
            found.setdefault(name, Reference(name, where))
    return tuple(found.values())

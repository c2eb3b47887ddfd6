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

LATER = dict.fromkeys(("path", "model", "context_binary", "include_source", "component_name", "registry"), OUTPUT_NAMES)
"""Texts of an output that may refer to names of a group and a target."""

_DEFAULT_MODEL = "${model}_ctx.onnx"
_DEFAULT_CONTEXT_BINARY = "${first_model}_${ep.short}.bin"
# Maximum and default level. Beyond 19, zstd needs far more memory, also for unpacking.
_LEVELS: Mapping[CompressionMethod, tuple[int, int]] = {"zstd": (19, 3), "deflate": (9, 6)}

Match = Callable[[str, Position, str], tuple[str, ...] | None]
"""Function that returns the names a glob matches in a section of the recipe, or None if they are unknown."""


class LayoutForm(Struct, frozen=True):
    """Properties of a layout that plans need."""

    prefix: str
    """Prefix of a pack's name in the ids of steps."""
    gathers: bool = False
    """True if all groups and targets of one path are one output. Each has its own folder there, and each model is a component."""


class PackForm(Struct, frozen=True):
    """Properties of a pack that plans need."""

    method: CompressionMethod
    """Compression method."""
    is_file: bool = False
    """True if the output is one file with the pack's suffix."""
    always: bool = False
    """True if the pack is always compressed. Then a level alone is enough."""
    hint: str = ""
    """Alternative to another method, as the end of a hint."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason why another method is refused, by its name."""


LAYOUT_FORMS: Mapping[Layout, LayoutForm] = {
    "directory": LayoutForm(""),
    "ort-model-package": LayoutForm("ort-model-package.", gathers=True),
}

PACK_FORMS: Mapping[Pack, PackForm] = {
    # Only the method that all readers of zip archives support: many do not open zstd members.
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
    """Read an entry of `outputs`."""
    layout: Any = fields.text("layout") or "directory"  # required by the schema; it is absent if it was a violation
    pack: Any = fields.text("pack")
    return OutputSpec(
        where=fields.where,
        layout=layout,
        path=fields.setting("path") or Setting("", fields.where, fields.where),
        model=fields.setting("model") or Setting(_DEFAULT_MODEL, fields.where, fields.where),
        context_binary=fields.setting("context_binary") or Setting(_DEFAULT_CONTEXT_BINARY, fields.where, fields.where),
        include_source=fields.setting("include_source"),
        component_name=fields.setting("component_name"),
        groups=_chosen(fields, "groups", match),
        targets=_chosen(fields, "targets", match),
        pack=pack,
        registry=fields.setting("registry"),
        compression=_compression(fields, pack),
        provenance=fields.flag("provenance"),
        sbom=fields.flag("sbom"),
    )


def _compression(fields: MappingReader, pack: Pack | None) -> Compression | None:
    """Read a method, a method and its level, or the level of the only method of a `tar.zst`."""
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
    """Return the groups or targets of an output, each once. Return None for all of them, or if they are unknown."""
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

"""Reader of outputs, and the properties of layouts and archive formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Position, Problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import Archive, ArchiveFormat, CompressionMethod, Encryption, Layout, OutputSpec, Reference, Setting
from epbuild.recipe.problems import WRONG_VALUE
from epbuild.recipe.template import OUTPUT_NAMES

LATER = dict.fromkeys(("path", "model", "context_binary", "include_source", "component_name", "registry"), OUTPUT_NAMES)
"""Keys of an output whose templates may contain names that depend on a group and a target."""

DEFAULT_MODEL = "${model}_ctx.onnx"
DEFAULT_SOURCE = "${model}.onnx"
"""Template for the file names of models that are not compiled, if the recipe sets no template."""
_DEFAULT_CONTEXT_BINARY = "${first_model}_${ep.short}.bin"

Match = Callable[[str, Position, str], tuple[str, ...] | None]
"""Function that returns the names in a section of the recipe that match a glob, or None if the section's names are unknown."""


class LayoutForm(Struct, frozen=True):
    """Properties of a layout that the planner uses."""

    prefix: str
    """Text before the archive format in the ids of steps."""
    gathers: bool = False
    """True if all groups and targets with the same path form one output.

    In the output, each pair of a group and a target has its own folder, and each model is a component.
    """


class ArchiveForm(Struct, frozen=True):
    """Properties of an archive format that the planner uses."""

    method: CompressionMethod
    """Compression method."""
    max_level: int
    """Maximum compression level, which gives the smallest files."""
    default_level: int | None = None
    """Compression level if the recipe does not set one. None means no compression."""
    is_file: bool = False
    """True if the output is one file with the format's suffix."""


LAYOUT_FORMS: Mapping[Layout, LayoutForm] = {
    "directory": LayoutForm(""),
    "ort-model-package": LayoutForm("ort-model-package.", gathers=True),
}

ARCHIVE_FORMS: Mapping[ArchiveFormat, ArchiveForm] = {
    # Deflate is the only method that all zip readers support. Many cannot read zstd members.
    "zip": ArchiveForm("deflate", 9, is_file=True),
    # Above level 19, zstd needs far more memory, even for unpacking.
    "tar.zst": ArchiveForm("zstd", 19, default_level=3, is_file=True),
    "oci": ArchiveForm("zstd", 19),
}


def read_output(fields: MappingReader, match: Match) -> OutputSpec:
    """Read an entry of `outputs`."""
    layout: Any = fields.text("layout") or "directory"  # the schema requires a layout, but an invalid value has been removed
    return OutputSpec(
        where=fields.where,
        layout=layout,
        path=fields.output_path("path") or Setting("", fields.where, fields.where),
        model=fields.output_path("model") or Setting(DEFAULT_MODEL, fields.where, fields.where),
        context_binary=fields.output_path("context_binary") or Setting(_DEFAULT_CONTEXT_BINARY, fields.where, fields.where),
        include_source=fields.output_path("include_source"),
        component_name=fields.setting("component_name"),
        groups=_match_names(fields, "groups", match),
        targets=_match_names(fields, "targets", match),
        archive=_read_archive(fields),
        registry=fields.setting("registry"),
        provenance=fields.flag("provenance"),
        sbom=fields.flag("sbom"),
        encryption=_read_encryption(fields.mapping("encrypt")) if "encrypt" in fields.entries else None,
    )


def _read_encryption(fields: MappingReader) -> Encryption:
    command = tuple(text for text, _ in fields.texts("key_command"))
    return Encryption(fields.where, fields.text("key_variable"), command, fields.text("key_id"))


def _read_archive(output: MappingReader) -> Archive | None:
    """Read the key `archive`: a format, or a mapping with a format and a compression level."""
    if "archive" not in output.entries:
        return None
    fields = output.expand_shorthand(output.entries["archive"].node, "format")
    name: Any = fields.text("format")
    if name is None:
        return None
    form, level = ARCHIVE_FORMS[name], fields.integer("level")
    if level is None:
        level = form.default_level
    elif level > form.max_level:
        message = f"the compression level of {name} must be between 1 and {form.max_level}"
        fields.problems.append(Problem(WRONG_VALUE, message, fields.where_of("level")))
    return Archive(name, level)


def _match_names(fields: MappingReader, key: str, match: Match) -> tuple[Reference, ...] | None:
    """Return the groups or targets of an output, without duplicates.

    Return None if the key is absent, or if the names in the recipe's section `key` are unknown.
    """
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

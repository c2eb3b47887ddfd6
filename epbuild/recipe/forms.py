"""Forms of an output: properties of layouts and packs that plans need.

`output/layouts.py` arranges the files of a layout, and `publish/emit.py` writes those of a pack, under the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from epbuild.recipe.model import CompressionMethod, Layout, Pack


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

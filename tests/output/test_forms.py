"""Layouts and archive formats of the recipe language, and the tables that must have all of them."""

from __future__ import annotations

from typing import get_args

from epbuild.archive.formats import FORMATS
from epbuild.core.canonical import read_schema
from epbuild.output.tree import LAYOUTS
from epbuild.recipe.model import ArchiveFormat, Layout
from epbuild.recipe.outputs import ARCHIVE_FORMS, LAYOUT_FORMS


def asked(name: str) -> set[str]:
    """Return the values that the recipe schema allows for a field of an output."""
    found = read_schema("recipe")["$defs"]["output"]["properties"][name]
    return set((found if "enum" in found else found["properties"]["format"])["enum"])


def test_every_layout_can_be_planned_and_emitted() -> None:
    assert asked("layout") == set(get_args(Layout)) == set(LAYOUT_FORMS) == set(LAYOUTS)


def test_every_archive_format_can_be_planned() -> None:
    assert asked("archive") == set(get_args(ArchiveFormat)) == set(ARCHIVE_FORMS)


def test_every_archive_format_with_a_file_has_a_reader_and_writer() -> None:
    assert {name for name, form in ARCHIVE_FORMS.items() if form.is_file} == set(FORMATS)

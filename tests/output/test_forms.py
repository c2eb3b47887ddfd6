"""Every layout and pack of the recipe's language is known wherever one has to be."""

from __future__ import annotations

from typing import get_args

from epbuild.archive.formats import FORMATS
from epbuild.core.schemas import schema
from epbuild.output.tree import LAYOUTS
from epbuild.recipe.model import Layout, Pack
from epbuild.recipe.outputs import LAYOUT_FORMS, PACK_FORMS


def asked(name: str) -> set[str]:
    """The values that the schema of recipes has for a field of an output."""
    return set(schema("recipe")["$defs"]["output"]["properties"][name]["enum"])


def test_every_layout_of_the_language_can_be_planned_and_published() -> None:
    assert asked("layout") == set(get_args(Layout)) == set(LAYOUT_FORMS) == set(LAYOUTS)


def test_every_pack_of_the_language_can_be_planned() -> None:
    assert asked("pack") == set(get_args(Pack)) == set(PACK_FORMS)


def test_every_pack_that_is_a_file_has_a_format_that_writes_and_reads_it() -> None:
    assert {name for name, form in PACK_FORMS.items() if form.is_file} == set(FORMATS)

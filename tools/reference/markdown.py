"""Markdown of generated pages: tables, code and escaped text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. The text of a cell may have several lines."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(format_cell(text) for text in line) + " |" for line in lines)


def format_cell(text: str) -> str:
    """Return the text of a cell on one line, with its bars escaped."""
    return format_inline(text).replace("\\|", "|").replace("|", "\\|")


def format_inline(text: str) -> str:
    """Return a text on one line, with brackets and stars outside of code escaped."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(
        piece if number % 2 else piece.replace("<", "&lt;").replace("*", "\\*") for number, piece in enumerate(pieces)
    )


def format_paragraph(text: str) -> str:
    """Return a paragraph, wrapped at 100 columns."""
    return textwrap.fill(format_inline(text), 100, break_long_words=False, break_on_hyphens=False)


def format_code(text: str) -> str:
    """Return a text as code."""
    if not text:
        return '`""`'
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def format_json_value(value: Any) -> str:
    """Return a JSON scalar as code."""
    return format_code(str(value).lower() if isinstance(value, bool) else str(value))


def build_anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return "".join(character for character in title.lower().replace(" ", "-") if character.isalnum() or character in "-_")

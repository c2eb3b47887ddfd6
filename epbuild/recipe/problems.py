"""The codes of mistakes in a recipe, and the quoting of its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from epbuild.core.errors import printable

CANNOT_READ: Final = "EPB100"
SYNTAX: Final = "EPB101"
DUPLICATE_KEY: Final = "EPB102"
UNKNOWN_KEY: Final = "EPB103"
MISSING_KEY: Final = "EPB104"
WRONG_TYPE: Final = "EPB105"
WRONG_VALUE: Final = "EPB106"
BAD_NAME: Final = "EPB107"
UNKNOWN_REFERENCE: Final = "EPB108"
TEMPLATE: Final = "EPB109"
TOO_LARGE: Final = "EPB110"

UNUSABLE: Final = re.compile(r"[\0\uD800-\uDFFF]")
"""What no file name and no JSON document can hold."""

_LONGEST_QUOTE = 80
_LONGEST_LIST = 30


def quoted(text: str) -> str:
    """`text` in quotes, on one line, its middle left out where it is long."""
    if len(text) > _LONGEST_QUOTE:
        half = _LONGEST_QUOTE // 2
        text = f"{text[:half]}…{text[-half:]}"
    return f"'{printable(text)}'"


def one_of(words: Iterable[str]) -> str:
    """The words that are possible at a place, for a hint; `nothing` when there are none."""
    known = list(words)
    shown = ", ".join(known[:_LONGEST_LIST])
    if len(known) > _LONGEST_LIST:
        return f"{shown} and {len(known) - _LONGEST_LIST} more"
    return shown or "nothing"

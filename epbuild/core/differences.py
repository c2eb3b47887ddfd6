"""Differences between two documents of plain data, such as key documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

Kind = Literal["added", "removed", "changed"]
Place = tuple[str, ...]
"""Path to a fact in a document, as the names of keys and list items from the root."""

_DIGEST_LENGTH = 64
_SHOWN_DIGITS = 8


def list_facts(document: Any, place: Place = (), whole: Set[Place] = frozenset()) -> dict[Place, Any]:
    """Return the leaf values of a document, by place.

    In a place, a list item is identified by its `name`, or by its index if it has no name. A mapping or list whose place is in
    `whole` counts as a leaf.
    """
    if isinstance(document, Mapping) and place not in whole:
        children = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list) and place not in whole:
        children = [(_get_name(item, str(number)), item) for number, item in enumerate(document)]
    else:
        return {place: document}
    return {leaf: value for name, child in children for leaf, value in list_facts(child, (*place, name), whole).items()}


def compare_facts(old: Any, new: Any, whole: Set[Place] = frozenset()) -> Iterator[tuple[Kind, Place, Any, Any]]:
    """Yield the kind, the place, the old value and the new value of each difference. A missing value is None."""
    before, after = list_facts(old, whole=whole), list_facts(new, whole=whole)
    for place in dict.fromkeys((*before, *after)):
        if place not in after:
            yield "removed", place, before[place], None
        elif place not in before:
            yield "added", place, None, after[place]
        elif before[place] != after[place]:
            yield "changed", place, before[place], after[place]


def format_value(value: Any) -> str:
    """Return a value of a document as text for users. A digest is shortened to its first digits."""
    if isinstance(value, str) and len(value) == _DIGEST_LENGTH and all(digit in "0123456789abcdef" for digit in value):
        return value[:_SHOWN_DIGITS]
    if isinstance(value, list):
        return ", ".join(format_value(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else str(value)


def _get_name(item: Any, otherwise: str) -> str:
    return str(item.get("name", otherwise)) if isinstance(item, Mapping) else otherwise

"""Differences between two documents of plain data: action keys, artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

Kind = Literal["added", "removed", "changed"]
Place = tuple[str, ...]
"""The names that lead to a fact, from the document inward."""

_DIGEST_LENGTH = 64
_SHOWN_DIGITS = 8


def facts(document: Any, place: Place = (), whole: Set[Place] = frozenset()) -> dict[Place, Any]:
    """Every leaf of a document by its place; the members of a list go by their name where they have one.

    What lies at a place in `whole` counts as a leaf.
    """
    if isinstance(document, Mapping) and place not in whole:
        children = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list) and place not in whole:
        children = [(_name_of(item, str(number)), item) for number, item in enumerate(document)]
    else:
        return {place: document}
    return {leaf: value for name, child in children for leaf, value in facts(child, (*place, name), whole).items()}


def changed_facts(old: Any, new: Any, whole: Set[Place] = frozenset()) -> Iterator[tuple[Kind, Place, Any, Any]]:
    """Every fact in which two documents differ, each once, with its old and its new value; one that is not there is None."""
    before, after = facts(old, whole=whole), facts(new, whole=whole)
    for place in dict.fromkeys((*before, *after)):
        if place not in after:
            yield "removed", place, before[place], None
        elif place not in before:
            yield "added", place, None, after[place]
        elif before[place] != after[place]:
            yield "changed", place, before[place], after[place]


def shown(value: Any) -> str:
    """A value of a document as people see it: of a digest, the first digits."""
    if isinstance(value, str) and len(value) == _DIGEST_LENGTH and all(digit in "0123456789abcdef" for digit in value):
        return value[:_SHOWN_DIGITS]
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else str(value)


def _name_of(item: Any, otherwise: str) -> str:
    return str(item.get("name", otherwise)) if isinstance(item, Mapping) else otherwise

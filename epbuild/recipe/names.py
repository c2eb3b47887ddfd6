"""Rules for names in a recipe, and globs that match names."""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Collection, Iterable

from epbuild.core.errors import Argument, Position, Problem, suggest_nearest
from epbuild.core.safepath import is_device
from epbuild.recipe.problems import BAD_NAME, UNKNOWN_REFERENCE, format_choices, quote_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_PART = re.compile(r"[A-Za-z0-9._-]+")
_NO_NAME_PART = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 100


def name_problem(name: str, where: Position) -> Problem | None:
    """Return the problem of an invalid name, or None. Names become ids and file names, which must be valid on every system."""
    if not _NAME.fullmatch(name):
        message = f"invalid name {quote_text(name)}: expected letters, digits, '.', '_' and '-', starting with a letter or digit"
    elif name.endswith("."):
        message = f"the name {quote_text(name)} ends with '.', which Windows drops from file names"
    elif is_device(name):
        message = f"the name {quote_text(name)} is reserved on Windows"
    elif len(name) > _MAX_NAME:
        message = f"the name {quote_text(name)} is longer than {_MAX_NAME} characters"
    else:
        return None
    return Problem(BAD_NAME, message, where)


def is_name_part(text: str) -> bool:
    """Return whether a text is valid at the end of a name."""
    return _NAME_PART.fullmatch(text) is not None and not text.endswith(".")


def name_of_text(text: str) -> str:
    """Return the valid name that is closest to a text, or an empty string if the text has no Latin letter and no digit.

    Accents are removed where Unicode separates them from their letter.
    """
    letters = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    return _NO_NAME_PART.sub("-", "".join(letter for letter in letters if not unicodedata.combining(letter))).strip("-._")


def find_clashes(names: Iterable[tuple[str, Position]]) -> list[Problem]:
    """Return problems for names that differ only in case, because their files would collide on Windows and macOS."""
    first: dict[str, str] = {}
    found = []
    for name, where in names:
        other = first.setdefault(name.casefold(), name)
        if other != name:
            message = f"the name {quote_text(name)} differs from {quote_text(other)} only in case"
            found.append(Problem(BAD_NAME, message, where))
    return found


def match_names(pattern: str, names: Collection[str]) -> list[str]:
    """Return the names that a name or glob matches, in sorted order, because the order of a recipe's keys has no meaning."""
    if pattern in names:
        return [pattern]
    return sorted(filter(re.compile(fnmatch.translate(pattern)).match, names)) if is_glob(pattern) else []


def is_glob(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def make_unknown_problem(
    kind: str, name: str, known: Collection[str], where: Position | Argument, *, suggest: bool = True
) -> Problem:
    """Return the problem of a reference or glob without a match.

    If `suggest` is True, the hint contains a similar known name or all known names.
    """
    message = f"no {kind} matches {quote_text(name)}" if is_glob(name) else f"there is no {kind} {quote_text(name)}"
    hint = _suggest_name(name, known) if suggest else None
    return Problem(UNKNOWN_REFERENCE, message, where, hint)


def _suggest_name(name: str, known: Collection[str]) -> str:
    rows = f"{name}-*"
    if _NAME.fullmatch(name) and any(fnmatch.fnmatchcase(other, rows) for other in known):
        return f"Did you mean '{rows}'?"
    return suggest_nearest(name, known) or f"Available: {format_choices(sorted(known))}."

"""Redaction in text: secrets in addresses, and values of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = re.compile(
    # Of the scheme its end is enough: to look for its beginning takes a minute for a long line without one.
    r"""(?P<scheme>[A-Za-z0-9+.-]{2}://)(?P<user>[^/\s?#'"]*@)?(?P<path>[^?#'",]*)"""
    # It ends where a YAML scalar may: before a space, a quote, a comment, or what closes or goes on after it in a collection.
    r"""(?P<query>\?(?:\$\{[^}]*\}|[^\s'"#])*?(?=[\s'"#]|[,}\]]+(?:[\s'"]|$)|$))?"""
)
_MIN_SECRET = 8
"""Length from which a value of the environment is concealed: a shorter one is part of too many other words."""
_concealed: dict[str, str] = {}
"""What stands for each value, in lower case, in the order in which the values were read."""
_REFERENCE = re.compile(r"(\$\{[^}]*\})")


def redacted(text: str) -> str:
    """`text`, which may hold addresses, with a star for each character of their users, passwords and queries.

    References such as `${env.TOKEN}` stay: they are names. The length stays too, so that a place in the text is one still.
    """
    return _ADDRESS.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    user, query = found["user"] or "", found["query"] or ""
    return found["scheme"] + _stars(user[:-1]) + user[-1:] + found["path"] + query[:1] + _stars(query[1:])


def _stars(text: str) -> str:
    return "".join(part if _REFERENCE.fullmatch(part) else "*" * len(part) for part in _REFERENCE.split(text))


def conceal(name: str, value: str) -> None:
    """Have `concealed` write `${env.NAME}` for the value of a variable from now on."""
    for form in (value, repr(value)[1:-1]):
        if len(form.strip()) >= _MIN_SECRET:
            _concealed.setdefault(form.strip().lower(), f"${{env.{name}}}")


def concealed(text: str) -> str:
    """Return a text in which variables of the environment stand for their values, as far as recipes have read them."""
    if not _concealed:
        return text
    longest_first = sorted(_concealed, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)
    return pattern.sub(lambda found: _concealed.get(found[0].lower(), "${env}"), text)


def concealed_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a compile as others may see them: a value that came from the environment by its name there."""
    return {name: concealed(value) for name, value in variables.items()}

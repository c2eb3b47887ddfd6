"""Redaction in text: secrets in addresses, and values of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = re.compile(
    # Match only the end of the scheme: searching for its beginning takes a minute in a long line without one.
    r"""(?P<scheme>[A-Za-z0-9+.-]{2}://)(?P<user>[^/\s?#'"]*@)?(?P<path>[^?#'",]*)"""
    # A query ends where a YAML scalar may end: before a space, a quote, a comment, or a delimiter of a collection.
    r"""(?P<query>\?(?:\$\{[^}]*\}|[^\s'"#])*?(?=[\s'"#]|[,}\]]+(?:[\s'"]|$)|$))?"""
)
_MIN_SECRET = 8
"""Minimum length of a value that is concealed. Shorter values are parts of too many other words."""
_concealed: dict[str, str] = {}
"""Replacement of each value, by the value in lower case."""
_REFERENCE = re.compile(r"(\$\{[^}]*\})")


def redact(text: str) -> str:
    """Replace each character of users, passwords and queries of the addresses in `text` by a star.

    References such as `${env.TOKEN}` stay, as they are names. The length stays too, so that positions in the text remain valid.
    """
    return _ADDRESS.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    user, query = found["user"] or "", found["query"] or ""
    return found["scheme"] + _stars(user[:-1]) + user[-1:] + found["path"] + query[:1] + _stars(query[1:])


def _stars(text: str) -> str:
    return "".join(part if _REFERENCE.fullmatch(part) else "*" * len(part) for part in _REFERENCE.split(text))


def conceal(name: str, value: str) -> None:
    """Make `concealed` replace the value of a variable by `${env.NAME}` from now on."""
    for form in (value, repr(value)[1:-1]):
        if len(form.strip()) >= _MIN_SECRET:
            _concealed.setdefault(form.strip().lower(), f"${{env.{name}}}")


def conceal_text(text: str) -> str:
    """Return a text with the values that recipes read from the environment replaced by the names of their variables."""
    if not _concealed:
        return text
    longest_first = sorted(_concealed, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)
    return pattern.sub(lambda found: _concealed.get(found[0].lower(), "${env}"), text)


def conceal_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a compile for publication: each value from the environment is replaced by its name."""
    return {name: conceal_text(value) for name, value in variables.items()}

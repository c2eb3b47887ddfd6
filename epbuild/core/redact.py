"""Redaction of text: secrets in addresses, and values of environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = re.compile(
    # Only the end of the scheme is matched, because searching a long line without a scheme for its start takes a minute.
    r"""(?P<scheme>[A-Za-z0-9+.-]{2}://)(?P<user>[^/\s?#'"]*@)?(?P<path>[^?#'",]*)"""
    # A query ends where a YAML scalar may end: before a space, a quote, a comment, or the delimiter of a collection.
    r"""(?P<query>\?(?:\$\{[^}]*\}|[^\s'"#])*?(?=[\s'"#]|[,}\]]+(?:[\s'"]|$)|$))?"""
)
_MIN_SECRET = 8
"""Minimum length of values that are concealed. Shorter values occur in too many other words."""
_concealed: dict[str, str] = {}
"""Replacement of each registered value, by the value in lower case."""
_REFERENCE = re.compile(r"(\$\{[^}]*\})")


def redact(text: str) -> str:
    """Replace each character of user names, passwords and queries in addresses with a star.

    References such as `${env.TOKEN}` are kept, because they are only names. The length of `text` does not change, so that
    positions remain valid.
    """
    return _ADDRESS.sub(_hide, text)


def _hide(found: re.Match[str]) -> str:
    user, query = found["user"] or "", found["query"] or ""
    return (
        found["scheme"] + _replace_with_stars(user[:-1]) + user[-1:] + found["path"] + query[:1] + _replace_with_stars(query[1:])
    )


def _replace_with_stars(text: str) -> str:
    return "".join(part if _REFERENCE.fullmatch(part) else "*" * len(part) for part in _REFERENCE.split(text))


def conceal(name: str, value: str) -> None:
    """Register the value of an environment variable. `conceal_text` then replaces it with `${env.NAME}`."""
    for form in (value, repr(value)[1:-1]):
        if len(form.strip()) >= _MIN_SECRET:
            _concealed.setdefault(form.strip().lower(), f"${{env.{name}}}")


def conceal_text(text: str) -> str:
    """Return a text in which values of registered environment variables are replaced with the variables' names."""
    if not _concealed:
        return text
    longest_first = sorted(_concealed, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)
    return pattern.sub(lambda found: _concealed.get(found[0].lower(), "${env}"), text)


def conceal_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a compile's environment variables with `conceal_text` applied to each value, so that they can be published."""
    return {name: conceal_text(value) for name, value in variables.items()}

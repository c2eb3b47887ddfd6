"""Redaction of addresses in text: users, passwords, queries."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    # Of the scheme its end is enough: to look for its beginning takes a minute for a long line without one.
    r"""(?P<scheme>[A-Za-z0-9+.-]{2}://)(?P<user>[^/\s?#'"]*@)?(?P<path>[^?#'",]*)"""
    # It ends where a YAML scalar may: before a space, a quote, a comment, or what closes or goes on after it in a collection.
    r"""(?P<query>\?(?:\$\{[^}]*\}|[^\s'"#])*?(?=[\s'"#]|[,}\]]+(?:[\s'"]|$)|$))?"""
)
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

"""Where a source model can be besides a path: in a Python package, behind an address, in a repository of models."""

from __future__ import annotations

import re

from epbuild.errors import Position, Problem, nearest
from epbuild.recipe.problems import MISSING_KEY, WRONG_VALUE, one_of, quoted

_PACKAGE = "package:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_PINNED = ("https", "s3", "gs", "az")
_KNOWN = (*_PINNED, "hf")
_HOST_AND_FILE = re.compile(r"[^/?#\s]+/[^\s]*[^/\s]")
_REPOSITORY_FILE = re.compile(r"[^/@\s]+/[^/@\s]+(/[^/@\s]+)+@[^@\s]+")


def is_address(path: str) -> bool:
    """Whether a model's path is not relative to the recipe."""
    return path.startswith(_PACKAGE) or _SCHEME.match(path) is not None


def address_problem(path: str, where: Position, *, pinned: bool) -> Problem | None:
    """What is wrong with a model's address; `pinned` when the recipe gives the file's SHA-256.

    What an address holds can change from one day to the next: it needs a pin, and `hf://` a revision, to mean one file.
    """
    address = _SCHEME.match(path)
    if address is None:
        return None  # of a package: its version pins the file
    scheme, rest = address.groups()
    if scheme == "http":
        hint = "Use https://, or download the file yourself."
        return Problem(WRONG_VALUE, "What comes over http:// can be changed on its way.", where, hint)
    if scheme not in _KNOWN:
        hint = nearest(scheme, _KNOWN) or f"There is: {one_of(_KNOWN)}; everything else is a path."
        return Problem(WRONG_VALUE, f"Models cannot be fetched from {quoted(scheme + '://')}.", where, hint)
    if scheme == "hf":
        if _REPOSITORY_FILE.fullmatch(rest):
            return None
        hint = "Write hf://<owner>/<repository>/<file>@<revision>."
        missing = "has no revision" if "@" not in rest else "names no file of a repository"
        return Problem(WRONG_VALUE, f"{quoted(path)} {missing}.", where, hint)
    if not _HOST_AND_FILE.fullmatch(rest):
        return Problem(WRONG_VALUE, f"{quoted(path)} names no file.", where, f"Write {scheme}://<host or bucket>/<file>.")
    if "@" in rest.split("/", 1)[0]:
        message = "An address cannot hold a user or a password: it is written into every manifest."
        return Problem(WRONG_VALUE, message, where)
    if not pinned:
        message = f"A model from {scheme}:// needs a 'sha256': what lies behind an address can change."
        return Problem(MISSING_KEY, message, where)
    return None

"""Custom operators as a recipe names them: a library, or a Python package."""

from __future__ import annotations

import re

from epbuild.core.errors import Position, Problem
from epbuild.recipe.problems import WRONG_VALUE, quoted

_LIBRARY = re.compile(r"[/\\]|\.(?:so(?:\.\d+)*|dll|dylib|pyd)$", re.IGNORECASE)
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def names_library(text: str) -> bool:
    """Whether a text is the path of a shared library, and not the name of a Python package: it has a folder, or a library's suffix."""
    return _LIBRARY.search(text) is not None


def custom_ops_problem(text: str, where: Position) -> Problem | None:
    """What is wrong with a text that is neither the path of a library nor the name by which a package is imported."""
    if names_library(text) or _MODULE.fullmatch(text):
        return None
    message = f"{quoted(text)} is neither the path of a shared library nor the name of a Python package"
    imported = text.replace("-", "_")
    hint = "Write a path that ends in .so, .dll or .dylib, or the name by which Python imports the package."
    if _MODULE.fullmatch(imported):  # as pip calls it
        hint = f"Python imports a package by a name such as {quoted(imported)}; a library is a path, such as './{text}'."
    return Problem(WRONG_VALUE, message, where, hint)

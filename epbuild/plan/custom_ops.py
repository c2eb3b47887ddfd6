"""Planner of the custom operators of session groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Position, Problem
from epbuild.core.safepath import is_file, user_path
from epbuild.recipe.model import Reference
from epbuild.recipe.paths import names_library


class CustomOpLibraries(Struct, frozen=True):
    """Source of custom operators for sessions: a shared library, or a Python package that contains one."""

    name: str
    """Module of the package, or file name of the library. Keys, manifests and applications use this name."""
    where: Position
    library: Path | None = None
    """Path of the library; None for a package, which finds its own library."""


def plan_custom_ops(named: Iterable[Reference], base: Path, problems: list[Problem]) -> tuple[CustomOpLibraries, ...]:
    """Return the custom operators that a recipe's list names, with paths relative to `base`. Missing files are added to `problems`."""
    found = []
    for reference in named:
        if not names_library(reference.name):
            found.append(CustomOpLibraries(reference.name, reference.where))
            continue
        path = base / user_path(reference.name)
        if not is_file(path):
            message = f"the library of custom operators does not exist: {reference.name}"
            problems.append(Problem("EPB252", message, reference.where, "Paths are relative to the recipe."))
        found.append(CustomOpLibraries(path.name, reference.where, path))
    return tuple(found)


def merge_custom_ops(*lists: Iterable[CustomOpLibraries]) -> tuple[CustomOpLibraries, ...]:
    """Merge lists of custom operators, without duplicates and sorted by name.

    No other order has a meaning, as ONNX Runtime takes a domain from one library only.
    """
    ops = {(item.name, item.library): item for items in lists for item in items}
    return tuple(sorted(ops.values(), key=lambda item: item.name))


def find_clashes(ops: Iterable[CustomOpLibraries]) -> Iterator[Problem]:
    """Yield a problem for each library that has the name of another one, as the name would be ambiguous."""
    seen: dict[str, CustomOpLibraries] = {}
    for item in ops:
        other = seen.setdefault(item.name, item)
        if other is not item:
            places = " and ".join(str(found.library or "a package") for found in (other, item))
            message = f"the custom operators of {places} go by one name, '{item.name}'"
            yield Problem("EPB253", message, item.where, "Rename one of them: manifests and applications know them by that name.")

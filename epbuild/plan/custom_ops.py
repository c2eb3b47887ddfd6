"""The custom operators of session groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Position, Problem
from epbuild.core.safepath import is_file, user_path
from epbuild.recipe.model import Reference
from epbuild.recipe.paths import names_library


class CustomOpLibraries(Struct, frozen=True):
    """What sessions are given so that they know operators which ONNX Runtime does not: a shared library, or a package that ships one."""

    name: str
    """The module of the package, or the library's file name: what keys, manifests and applications call it."""
    where: Position
    library: Path | None = None
    """None: the package knows where its library is."""


def plan_custom_ops(named: Iterable[Reference], base: Path, problems: list[Problem]) -> tuple[CustomOpLibraries, ...]:
    """The custom operators that a recipe names in one list; paths are relative to `base`. What does not exist is added to `problems`."""
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


def together(*lists: Iterable[CustomOpLibraries]) -> tuple[CustomOpLibraries, ...]:
    """Several lists as one, in which what is the same stands once.

    It is ordered by the names: ONNX Runtime takes a domain from one library only, so that no other order means anything.
    """
    ops = {(item.name, item.library): item for items in lists for item in items}
    return tuple(sorted(ops.values(), key=lambda item: item.name))


def clashes(ops: Iterable[CustomOpLibraries]) -> Iterator[Problem]:
    """A problem for each library that has the file name of another one: nothing that names it could mean either."""
    seen: dict[str, CustomOpLibraries] = {}
    for item in ops:
        other = seen.setdefault(item.name, item)
        if other is not item:
            places = " and ".join(str(found.library or "a package") for found in (other, item))
            message = f"the custom operators of {places} go by one name, '{item.name}'"
            yield Problem("EPB253", message, item.where, "Rename one of them: manifests and applications know them by that name.")

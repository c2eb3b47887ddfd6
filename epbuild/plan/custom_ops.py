"""Planner of the custom operators in toolchains."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Position, Problem
from epbuild.core.safepath import expand_home, is_file
from epbuild.recipe.model import Reference
from epbuild.recipe.paths import is_library_path


class CustomOpLibraries(Struct, frozen=True):
    """Source of custom operators for sessions: a shared library, or a Python package that contains one."""

    name: str
    """Module of the package, or file name of the library. Keys, manifests and applications use this name."""
    where: Position
    library: Path | None = None
    """Path of the library. None for a package, which locates its own library."""


def plan_custom_ops(named: Iterable[Reference], base: Path, problems: list[Problem]) -> tuple[CustomOpLibraries, ...]:
    """Return a toolchain's custom operators without duplicates. Paths are relative to `base`. Add problems to `problems`.

    The operators are sorted by name. The recipe's order is irrelevant, because ONNX Runtime uses only one library for each domain.
    """
    found: dict[str, CustomOpLibraries] = {}
    for reference in named:
        ops = CustomOpLibraries(reference.name, reference.where)
        if is_library_path(reference.name):
            path = base / expand_home(reference.name)
            if not is_file(path):
                message = f"the library of custom operators does not exist: {reference.name}"
                problems.append(Problem("EPB252", message, reference.where, "Paths are relative to the recipe."))
            ops = CustomOpLibraries(path.name, reference.where, path)
        other = found.setdefault(ops.name, ops)
        if other.library != ops.library:
            places = " and ".join(str(item.library or "a package") for item in (other, ops))
            message = f"the custom operators of {places} have the same name, '{ops.name}'"
            hint = "Rename one of them: manifests and applications identify custom operators by name."
            problems.append(Problem("EPB253", message, ops.where, hint))
    return tuple(sorted(found.values(), key=lambda item: item.name))

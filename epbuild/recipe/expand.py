"""What one definition in a recipe stands for: texts with their templates substituted, a matrix's rows, the names a glob matches."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from epbuild.errors import Position, Problem, nearest
from epbuild.recipe.fields import Fields
from epbuild.recipe.problems import BAD_NAME, UNKNOWN_REFERENCE, one_of, quoted
from epbuild.recipe.schema import wrong_type
from epbuild.recipe.source import MappingNode, Node, ScalarNode, SequenceNode
from epbuild.recipe.template import TemplateError, render, substitute, substitute_known

if TYPE_CHECKING:
    from epbuild.recipe.model import Scalar

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_PART = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST_NAME = 100
_WINDOWS_DEVICES = frozenset(
    ["CON", "PRN", "AUX", "NUL", *(f"{port}{digit}" for port in ("COM", "LPT") for digit in range(1, 10))]
)


def name_problem(name: str, where: Position) -> Problem | None:
    """Why `name` cannot be a name: names become ids, and file names on every system."""
    if not _NAME.fullmatch(name):
        message = f"{quoted(name)} is not a name: letters, digits, '.', '_' and '-', a letter or digit first."
    elif name.endswith("."):
        message = f"The name {quoted(name)} ends with '.', which Windows drops from a file's name."
    elif name.split(".", maxsplit=1)[0].upper() in _WINDOWS_DEVICES:
        message = f"The name {quoted(name)} is reserved on Windows."
    elif len(name) > _LONGEST_NAME:
        message = f"The name {quoted(name)} is longer than {_LONGEST_NAME} characters."
    else:
        return None
    return Problem(BAD_NAME, message, where)


def clash_problems(names: Iterable[tuple[str, Position]]) -> list[Problem]:
    """The names that are another's in different letter case: their files would be one on Windows and macOS."""
    first: dict[str, str] = {}
    found = []
    for name, where in names:
        other = first.setdefault(name.casefold(), name)
        if other != name:
            message = f"The name {quoted(name)} differs from {quoted(other)} in letter case only."
            found.append(Problem(BAD_NAME, message, where))
    return found


def resolved(
    node: Node, names: Mapping[str, Scalar], later: Mapping[str, Collection[str]] | None = None
) -> tuple[Node, list[Problem]]:
    """The node with the templates of its values substituted (keys have none), and what is wrong with them.

    `later` gives, for a key wherever it stands in the node, the names that its text keeps for the planner to substitute.
    """
    problems: list[Problem] = []

    def walk(node: Node, kept: Collection[str]) -> Node:
        if isinstance(node, MappingNode):
            entries = {
                key: dataclasses.replace(entry, node=walk(entry.node, later.get(key, ()) if later else ()))
                for key, entry in node.entries.items()
            }
            return dataclasses.replace(node, entries=entries)
        if isinstance(node, SequenceNode):
            return dataclasses.replace(node, items=tuple(walk(item, kept) for item in node.items))
        if not isinstance(node.value, str):
            return node
        try:
            value = substitute_known(node.value, names, kept) if kept else substitute(node.value, names)
        except TemplateError as error:
            problems.append(error.problem(node.where))
            return node
        return dataclasses.replace(node, value=value)

    return walk(node, ()), problems


@dataclasses.dataclass(frozen=True)
class Row:
    """One combination of a matrix's values: what it adds to the target's name, and its values by axis."""

    suffix: str
    values: Mapping[str, Scalar]


class Matrix:
    """The axes of a target's matrix, checked: every value must be fit to be part of a name, and be there once."""

    def __init__(self, node: Node) -> None:
        self.where = node.where
        self.problems: list[Problem] = []
        axes = Fields(node, self.problems).entries
        self._axes = {axis: self._values(entry.node) for axis, entry in axes.items()}

    def __len__(self) -> int:
        return math.prod(map(len, self._axes.values()))

    def rows(self) -> Iterable[Row]:
        """Every combination; the last axis changes fastest."""
        for values in itertools.product(*self._axes.values()):
            suffix = "".join(f"-{render(value)}" for value in values)
            yield Row(suffix, dict(zip(self._axes, values, strict=True)))

    def _values(self, axis: Node) -> list[Scalar]:
        found: dict[str, Scalar] = {}
        if not isinstance(axis, SequenceNode):
            self.problems.append(wrong_type(axis, "array"))
            return []
        for node in axis.items:
            if not isinstance(node, ScalarNode) or node.value is None:
                self.problems.append(wrong_type(node, ["string", "number", "boolean"]))
                continue
            part = render(node.value)
            if part in found:
                message = f"The value {quoted(part)} is in this axis twice."
                self.problems.append(Problem(BAD_NAME, message, node.where))
            elif not _NAME_PART.fullmatch(part) or part.endswith("."):
                message = f"The value {quoted(part)} cannot be part of a target's name."
                hint = "A name has letters, digits, '.', '_' and '-', and does not end with '.'."
                self.problems.append(Problem(BAD_NAME, message, node.where, hint))
            else:
                found[part] = node.value
        return list(found.values())


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """The names that a name or glob stands for, sorted: the order of a recipe's keys means nothing."""
    if pattern in names:
        return [pattern]
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


def unknown(kind: str, name: str, known: Collection[str], where: Position) -> Problem:
    """The problem of a reference, or a glob, that stands for nothing there is; `kind` is what it should have been."""
    rows = f"{name}-*"
    if any(fnmatch.fnmatchcase(other, rows) for other in known) and _NAME.fullmatch(name):
        hint: str | None = f"Did you mean '{rows}'?"
    else:
        hint = nearest(name, known)
    glob = any(character in name for character in "*?[")
    message = f"No {kind} matches {quoted(name)}." if glob else f"There is no {kind} {quoted(name)}."
    return Problem(UNKNOWN_REFERENCE, message, where, hint or f"There is: {one_of(sorted(known))}.")

"""What one definition in a recipe stands for: texts with their templates substituted, a matrix's rows, the names a glob matches."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from epbuild.core.errors import Argument, Position, Problem, nearest
from epbuild.recipe.fields import Fields
from epbuild.recipe.problems import BAD_NAME, UNKNOWN_REFERENCE, WRONG_VALUE, one_of, quoted
from epbuild.recipe.schema import wrong_type
from epbuild.recipe.source import Entry, MappingNode, Node, ScalarNode, SequenceNode
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

    What holds no template comes back as the same object, so that a matrix of many rows shares it. `later` gives, for a key wherever
    it stands in the node, the names that its text keeps for the planner to substitute.
    """
    problems: list[Problem] = []

    def walk(node: Node, kept: Collection[str]) -> Node:
        if isinstance(node, MappingNode):
            changed = {}
            for key, entry in node.entries.items():
                inner = walk(entry.node, later.get(key, ()) if later else ())
                if inner is not entry.node:
                    changed[key] = Entry(entry.name_where, inner)
            return dataclasses.replace(node, entries={**node.entries, **changed}) if changed else node
        if isinstance(node, SequenceNode):
            items = tuple(walk(item, kept) for item in node.items)
            same = all(map(operator.is_, items, node.items))
            return node if same else SequenceNode(node.where, items, node.size, node.height)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            value = substitute_known(node.value, names, kept) if kept else substitute(node.value, names)
        except TemplateError as error:
            problems.append(error.problem(node.where))
            return node
        return ScalarNode(node.where, value, node.written)

    return walk(node, ()), problems


@dataclasses.dataclass(frozen=True)
class Row:
    """One target of a matrix: what it adds to the target's name, its values by axis, and where it was written, if it was."""

    suffix: str
    values: Mapping[str, Scalar]
    where: Position | None = None


INCLUDE = "include"
EXCLUDE = "exclude"


class Matrix:
    """A target's matrix, checked: every combination of its axes' values, less what `exclude` names, and the rows of `include`.

    Every value must be fit to be part of a name, and be on its axis once.
    """

    def __init__(self, node: Node) -> None:
        self.where = node.where
        self.problems: list[Problem] = []
        fields = Fields(node, self.problems)
        axes = [axis for axis in fields.entries if axis not in (INCLUDE, EXCLUDE)]
        self._axes = {axis: self._axis(fields.items(axis)) for axis in axes}
        self._included = [(item.where, self._given(item)) for item in fields.items(INCLUDE)]
        self._excluded = [(item, self._given(item)) for item in fields.items(EXCLUDE)]
        for item, given in self._excluded:
            self._check_axes(item, given)

    def __len__(self) -> int:
        """How many rows there are before any is excluded."""
        return self._combinations + len(self._included)

    @property
    def _combinations(self) -> int:
        return math.prod(map(len, self._axes.values())) if self._axes else 0

    def rows(self) -> list[Row]:
        """Every combination that is not excluded, the last axis changing fastest, then the included rows.

        Notes an `exclude` that excludes nothing, and a matrix that has no rows left.
        """
        kept = list(self._kept()) if self._axes else []
        for where, values in self._included:
            extra = sorted(values.keys() - self._axes.keys())  # the order of a row's keys means nothing
            row = {axis: values[axis] for axis in [*self._axes, *extra] if axis in values}
            kept.append(Row(_suffix(row.values()), row, where))
        if not kept and not self.problems:
            self.problems.append(Problem(WRONG_VALUE, "This matrix has no rows.", self.where))
        return kept

    def _kept(self) -> Iterator[Row]:
        # By the axes that an `exclude` gives, then by its values: one look for each kind, however many there are.
        excluded: dict[tuple[int, ...], dict[tuple[str, ...], list[Node]]] = {}
        order = list(self._axes)
        for item, given in self._excluded:
            axes = tuple(index for index, axis in enumerate(order) if axis in given)
            values = tuple(render(given[order[index]]) for index in axes)
            excluded.setdefault(axes, {}).setdefault(values, []).append(item)
        used: set[int] = set()
        for row in itertools.product(*([(value, render(value)) for value in values] for values in self._axes.values())):
            found = [nodes for axes, named in excluded.items() if (nodes := named.get(tuple(row[axis][1] for axis in axes)))]
            used.update(id(node) for nodes in found for node in nodes)
            if not found:
                yield Row(
                    "".join(f"-{part}" for _, part in row), {axis: value for axis, (value, _) in zip(order, row, strict=True)}
                )
        unused = [item for item, _ in self._excluded if id(item) not in used]
        self.problems += [Problem(WRONG_VALUE, "This excludes no row.", item.where) for item in unused]

    def _axis(self, items: Iterable[Node]) -> list[Scalar]:
        found: dict[str, Scalar] = {}
        for node in items:
            value = self._value(node)
            if value is None:
                continue
            part = render(value)
            if part in found:
                message = f"The value {quoted(part)} is in this axis twice."
                self.problems.append(Problem(BAD_NAME, message, node.where))
            else:
                found[part] = value
        return list(found.values())

    def _given(self, item: Node) -> dict[str, Scalar]:
        """The values of a row of `include` or `exclude`."""
        found = {}
        for axis, entry in Fields(item, self.problems).entries.items():
            value = self._value(entry.node)
            if value is not None:
                found[axis] = value
        return found

    def _check_axes(self, item: Node, given: Collection[str]) -> None:
        for axis in given:
            if axis not in self._axes and isinstance(item, MappingNode):
                self.problems.append(unknown("axis", axis, self._axes, item.entries[axis].name_where))

    def _value(self, node: Node) -> Scalar | None:
        """A value that is fit to be part of a name, or None when it has been noted as a problem."""
        if not isinstance(node, ScalarNode) or node.value is None:
            self.problems.append(wrong_type(node, ["string", "number", "boolean"]))
            return None
        part = render(node.value)
        if _NAME_PART.fullmatch(part) and not part.endswith("."):
            return node.value
        hint = "A name has letters, digits, '.', '_' and '-', and does not end with '.'."
        self.problems.append(Problem(BAD_NAME, f"The value {quoted(part)} cannot be part of a target's name.", node.where, hint))
        return None


def _suffix(values: Iterable[Scalar]) -> str:
    return "".join(f"-{render(value)}" for value in values)


def matching(pattern: str, names: Collection[str]) -> list[str]:
    """The names that a name or glob stands for, sorted: the order of a recipe's keys means nothing."""
    if pattern in names:
        return [pattern]
    return sorted(filter(re.compile(fnmatch.translate(pattern)).match, names)) if is_glob(pattern) else []


def is_glob(pattern: str) -> bool:
    """Whether a text may stand for many names."""
    return any(character in pattern for character in "*?[")


def unknown(kind: str, name: str, known: Collection[str], where: Position | Argument, *, suggest: bool = True) -> Problem:
    """The problem of a reference, or a glob, that stands for nothing there is; `kind` is what it should have been.

    To `suggest` what was meant takes a look at everything known.
    """
    message = f"No {kind} matches {quoted(name)}." if is_glob(name) else f"There is no {kind} {quoted(name)}."
    hint = _suggestion(name, known) if suggest else None
    return Problem(UNKNOWN_REFERENCE, message, where, hint)


def _suggestion(name: str, known: Collection[str]) -> str:
    rows = f"{name}-*"
    if _NAME.fullmatch(name) and any(fnmatch.fnmatchcase(other, rows) for other in known):
        return f"Did you mean '{rows}'?"
    return nearest(name, known) or f"There is: {one_of(sorted(known))}."

"""Matrix of a target: its axes and rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Position, Problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.names import is_name_part, make_unknown_problem
from epbuild.recipe.nodes import MappingNode, Node, Scalar, ScalarNode, render
from epbuild.recipe.problems import BAD_NAME, WRONG_VALUE, quote_text


class MatrixRow(Struct, frozen=True):
    """Row of a matrix.

    `suffix` is appended to the target's name. `values` has the value of each axis, by its name in templates, such as `matrix.vtcm`.
    `where` is set only for a row from `include`.
    """

    suffix: str
    values: Mapping[str, Scalar]
    where: Position | None = None


INCLUDE = "include"
EXCLUDE = "exclude"


class Matrix:
    """Matrix of a target.

    Its rows are all combinations of the axes' values, except combinations in `exclude`, plus the rows in `include`. Each value
    must be a valid part of a name, and unique on its axis.
    """

    def __init__(self, node: Node, home: Path) -> None:
        self.where = node.where
        self.problems: list[Problem] = []
        fields = self._fields = MappingReader(node, self.problems, home)
        axes = [axis for axis in fields.entries if axis not in (INCLUDE, EXCLUDE)]
        self._axes = {axis: self._read_axis(fields.items(axis)) for axis in axes}
        self._included = [(item.where, self._read_row(item)) for item in fields.items(INCLUDE)]
        self._excluded = [(item, self._read_row(item)) for item in fields.items(EXCLUDE)]
        for item, given in self._excluded:
            for axis in given:
                if axis not in self._axes and isinstance(item, MappingNode):
                    self.problems.append(make_unknown_problem("axis", axis, self._axes, item.entries[axis].name_where))

    def __len__(self) -> int:
        """Return the number of rows, including rows that `exclude` removes."""
        combinations = math.prod(map(len, self._axes.values())) if self._axes else 0
        return combinations + len(self._included)

    def rows(self) -> list[MatrixRow]:
        """Return all combinations that are not excluded, followed by the included rows. The last axis changes fastest.

        Add a problem for each entry of `exclude` that matches no row, and for a matrix without rows.
        """
        kept = list(self._combine_axes()) if self._axes else []
        for where, values in self._included:
            extra = sorted(values.keys() - self._axes.keys())  # the order of a row's keys has no meaning
            row = {_get_template_name(axis): values[axis] for axis in [*self._axes, *extra] if axis in values}
            kept.append(MatrixRow("".join(f"-{render(value)}" for value in row.values()), row, where))
        if not kept and not self.problems:
            self.problems.append(Problem(WRONG_VALUE, "the matrix has no rows", self.where))
        return kept

    def _combine_axes(self) -> Iterator[MatrixRow]:
        # Entries of `exclude` are indexed by axes and then by values, so that each row requires one lookup per set of axes.
        excluded: dict[tuple[int, ...], dict[tuple[str, ...], list[Node]]] = {}
        order, names = list(self._axes), [_get_template_name(axis) for axis in self._axes]
        for item, given in self._excluded:
            axes = tuple(index for index, axis in enumerate(order) if axis in given)
            values = tuple(render(given[order[index]]) for index in axes)
            excluded.setdefault(axes, {}).setdefault(values, []).append(item)
        used: set[int] = set()
        spelled = itertools.product(*([render(value) for value in values] for values in self._axes.values()))
        for row, parts in zip(itertools.product(*self._axes.values()), spelled, strict=True):
            if excluded:
                found = [nodes for axes, named in excluded.items() if (nodes := named.get(tuple(parts[axis] for axis in axes)))]
                used.update(id(node) for nodes in found for node in nodes)
                if found:
                    continue
            yield MatrixRow(f"-{'-'.join(parts)}", dict(zip(names, row, strict=True)))
        unused = [item for item, _ in self._excluded if id(item) not in used]
        self.problems += [Problem(WRONG_VALUE, "this entry of 'exclude' matches no row", item.where) for item in unused]

    def _read_axis(self, items: Iterable[Node]) -> list[Scalar]:
        found: dict[str, Scalar] = {}
        for node in items:
            value = self._read_value(node)
            if value is None:
                continue
            part = render(value)
            if part in found:
                message = f"duplicate value {quote_text(part)} in this axis"
                self.problems.append(Problem(BAD_NAME, message, node.where))
            else:
                found[part] = value
        return list(found.values())

    def _read_row(self, item: Node) -> dict[str, Scalar]:
        entries = self._fields.of(item).entries
        return {axis: value for axis, entry in entries.items() if (value := self._read_value(entry.node)) is not None}

    def _read_value(self, node: Node) -> Scalar | None:
        """Return the value of a node. If the value is not a valid part of a name, add a problem and return None."""
        if not isinstance(node, ScalarNode) or node.value is None:
            return None
        part = render(node.value)
        if is_name_part(part):
            return node.value
        hint = "Use only letters, digits, '.', '_' and '-', and do not end with '.'."
        self.problems.append(
            Problem(BAD_NAME, f"the value {quote_text(part)} cannot be part of a target's name", node.where, hint)
        )
        return None


def _get_template_name(axis: str) -> str:
    return f"matrix.{axis}"

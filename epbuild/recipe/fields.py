"""A mapping's values, as the types that the recipe model has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from epbuild.core.errors import Position, Problem
from epbuild.core.units import bytes_of
from epbuild.recipe.model import InputShape, Reference, Setting
from epbuild.recipe.nodes import KeyedNode, MappingNode, Node, Scalar, ScalarNode, SequenceNode
from epbuild.recipe.paths import rebased
from epbuild.recipe.problems import WRONG_VALUE, quoted, wrong_type


class Fields:
    """One mapping, read key by key; `home` is the recipe that its paths are to be relative to, whichever file they were written in.

    What is not of the type asked for is added to `problems`, and read as absent.
    """

    def __init__(self, node: Node, problems: list[Problem], home: Path) -> None:
        self.where: Position = node.where
        self.entries: Mapping[str, KeyedNode] = {}
        self.gaps: frozenset[str] = frozenset()
        self.problems = problems
        self._home = home
        self._absent: Fields | None = None
        if isinstance(node, MappingNode):
            self.entries, self.gaps = node.entries, node.gaps
        else:
            problems.append(wrong_type(node, "object"))

    def lacks(self, key: str) -> bool:
        """Whether the key was not written at all: what was written and is wrong has been noted."""
        return key not in self.entries and key not in self.gaps

    def where_of(self, key: str) -> Position:
        """The place of the value, or of the mapping when the key is absent."""
        entry = self.entries.get(key)
        return entry.node.where if entry else self.where

    def text(self, key: str, *, may_be_empty: bool = False) -> str | None:
        """A string; the schema has seen one that was written empty, but not one that a template made empty."""
        entry = self.entries.get(key)
        return self.text_of(entry.node, may_be_empty=may_be_empty) if entry else None

    def text_of(self, node: Node, *, may_be_empty: bool = False) -> str | None:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
            self.problems.append(wrong_type(node, "string"))
            return None
        if not node.value and not may_be_empty:
            self.problems.append(Problem(WRONG_VALUE, "this must not be empty", node.where))
        return node.value

    def flag(self, key: str, *, default: bool = False) -> bool:
        value, node = self._scalar(key)
        if node is None or isinstance(value, bool):
            return value if isinstance(value, bool) else default
        self.problems.append(wrong_type(node, "boolean"))
        return default

    def agreed(self, key: str) -> bool:
        """A boolean that may be written as yes or no, as the schema has it; true when it is absent."""
        value, node = self._scalar(key)
        if node is not None and not (isinstance(value, bool) or value in ("yes", "no")):
            self.problems.append(wrong_type(node, "boolean"))
        return value not in (False, "no")

    def number(self, key: str) -> float | None:
        entry = self.entries.get(key)
        return self._number_of(entry.node) if entry else None

    def whole(self, key: str) -> int | None:
        """A whole number; `2.0` and `1e3` are whole too, as JSON Schema has it."""
        entry = self.entries.get(key)
        return self._whole_of(entry.node) if entry else None

    def whole_or_any(self, key: str) -> int | Literal["any"] | None:
        """A whole number, or the word `any`."""
        value, node = self._scalar(key)
        if node is None or not isinstance(value, str):
            return self.whole(key)
        if value == "any":
            return "any"
        self.problems.append(
            Problem(WRONG_VALUE, f"{quoted(value)} is not a number of nodes: write a whole number, or 'any'", node.where)
        )
        return None

    def size(self, key: str) -> int | None:
        """A number of bytes, or a text of a number and a unit such as `8 GB`."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        value = entry.node.value if isinstance(entry.node, ScalarNode) else None
        if not isinstance(value, str):
            return self.whole(key)
        try:
            size = bytes_of(value)
        except ValueError as error:
            self.problems.append(Problem(WRONG_VALUE, f"{quoted(value)} is not a size", entry.node.where, str(error)))
            return None
        if size < 1:
            self.problems.append(Problem(WRONG_VALUE, "this must be at least 1", entry.node.where))
        return size

    def of(self, node: Node) -> Fields:
        return Fields(node, self.problems, self._home)

    def long_form(self, node: Node, key: str) -> Fields:
        """A mapping, or the value that its short form has for one key."""
        return self.of(
            MappingNode(node.where, {key: KeyedNode(node.where, node)}, 2, 1) if isinstance(node, ScalarNode) else node
        )

    def reference(self, key: str) -> Reference:
        """A name, which is empty when it is absent."""
        return Reference(self.text(key) or "", self.where_of(key))

    def path(self, key: str) -> Reference | None:
        text = self.text(key)
        return self.rebased(text, self.where_of(key)) if text else None

    def paths(self, key: str) -> tuple[Reference, ...]:
        return tuple(self.rebased(text, where) for text, where in self.texts(key) if text)

    def rebased(self, text: str, where: Position) -> Reference:
        """The path that `text`, written at `where`, means."""
        return Reference(rebased(text, where, self._home), where)

    def setting(self, key: str) -> Setting | None:
        """A text with its place; None where it is absent or empty."""
        text = self.text(key)
        return Setting(text, self.where_of(key), self.entries[key].name_where) if text else None

    def texts(self, key: str) -> list[tuple[str, Position]]:
        """A list's strings, each with its place."""
        found = []
        for item in self.items(key):
            text = self.text_of(item)
            if text is not None:
                found.append((text, item.where))
        return found

    def numbers(self, key: str) -> list[float]:
        return [number for item in self.items(key) if (number := self._number_of(item)) is not None]

    def shapes(self, key: str) -> dict[str, InputShape]:
        """A mapping's sizes of inputs, by their names; an input with an invalid size is left out."""
        fields, found = self.mapping(key), {}
        for name, entry in fields.entries.items():
            items = fields.items(name)
            sizes = tuple(size for item in items if (size := self._whole_of(item)) is not None and size >= 1)
            if len(sizes) == len(items):
                found[name] = InputShape(sizes, entry.node.where, tuple(item.where for item in items), entry.name_where)
        return found

    def settings(self, key: str) -> dict[str, Setting]:
        """A mapping's scalars, by their names."""
        found: dict[str, Setting] = {}
        for name, entry in self.mapping(key).entries.items():
            if isinstance(entry.node, ScalarNode) and entry.node.value is not None:
                found[name] = Setting(entry.node.value, entry.node.where, entry.name_where)
            else:
                self.problems.append(wrong_type(entry.node, ["string", "number", "boolean"]))
        return found

    def mapping(self, key: str) -> Fields:
        """A mapping; one without keys when it is absent."""
        entry = self.entries.get(key)
        if entry is not None:
            return self.of(entry.node)
        if self._absent is None:
            self._absent = self.of(MappingNode(self.where, {}, 1, 0))
            self._absent._absent = self._absent
        return self._absent

    def items(self, key: str) -> tuple[Node, ...]:
        entry = self.entries.get(key)
        if entry is None:
            return ()
        if isinstance(entry.node, SequenceNode):
            return entry.node.items
        self.problems.append(wrong_type(entry.node, "array"))
        return ()

    def _number_of(self, node: Node) -> float | None:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        self.problems.append(wrong_type(node, "number"))
        return None

    def _whole_of(self, node: Node) -> int | None:
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            return int(value)
        self.problems.append(wrong_type(node, "integer"))
        return None

    def _scalar(self, key: str) -> tuple[Scalar | None, Node | None]:
        entry = self.entries.get(key)
        if entry is None:
            return None, None
        return (entry.node.value if isinstance(entry.node, ScalarNode) else None), entry.node

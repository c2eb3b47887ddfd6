"""Reader of a mapping's values as types of the recipe model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from epbuild.core.errors import Position, Problem
from epbuild.core.units import parse_bytes
from epbuild.recipe.model import InputShape, Reference, Setting
from epbuild.recipe.nodes import (
    KeyedNode,
    MappingNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceNode,
    expand_scalar,
    get_entries,
    get_text,
)
from epbuild.recipe.paths import rebase_path, use_slashes
from epbuild.recipe.problems import WRONG_VALUE, make_type_problem, quote_text


class MappingReader:
    """Reader of the values of one mapping. It converts all paths to paths relative to the recipe `home`.

    The mapping was validated against the JSON Schema, and invalid values were removed. A value is therefore absent or has the type
    that the caller expects.
    """

    def __init__(
        self, node: Node, problems: list[Problem], home: Path, paths: dict[tuple[Position, str], str] | None = None
    ) -> None:
        self.where: Position = node.where
        self.is_mapping = isinstance(node, MappingNode)
        self.entries: Mapping[str, KeyedNode] = node.entries if isinstance(node, MappingNode) else {}
        self.gaps: frozenset[str] = node.gaps if isinstance(node, MappingNode) else frozenset()
        self.problems = problems
        self._home = home
        self.rebased_paths = {} if paths is None else paths
        """Paths relative to the recipe. The keys are the position and the text of each path as written."""
        self._absent: MappingReader | None = None

    def lacks(self, key: str) -> bool:
        """Return whether a key is missing in the recipe. Return False for a key that was removed because its value is invalid."""
        return key not in self.entries and key not in self.gaps

    def where_of(self, key: str) -> Position:
        """Return the position of the key's value, or of the mapping if the key is absent."""
        entry = self.entries.get(key)
        return entry.node.where if entry else self.where

    def text(self, key: str) -> str | None:
        """Return the string at a key, or None if the key is absent."""
        value = self._get_scalar(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool:
        """Return the boolean at a key, or False if the key is absent."""
        return self._get_scalar(key) is True

    def number(self, key: str) -> float | None:
        """Return the number at a key, or None if the key is absent."""
        entry = self.entries.get(key)
        number = self._read_number(entry.node, "number") if entry else None
        return None if number is None else float(number)

    def integer(self, key: str) -> int | None:
        """Return the integer at a key, or None if the key is absent. As in JSON Schema, `2.0` and `1e3` are integers."""
        entry = self.entries.get(key)
        number = self._read_number(entry.node, "integer") if entry else None
        return None if number is None else int(number)

    def integer_or_any(self, key: str) -> int | Literal["any"] | None:
        """Return the integer or the string `any` at a key, or None if the key is absent."""
        value = self._get_scalar(key)
        if not isinstance(value, str):
            return self.integer(key)
        if value == "any":
            return "any"
        message = f"invalid number of nodes {quote_text(value)}: expected a whole number or 'any'"
        self.problems.append(Problem(WRONG_VALUE, message, self.where_of(key)))
        return None

    def size(self, key: str) -> int | None:
        """Return the number of bytes at a key, or None if the key is absent. The recipe may use a unit, such as `8 GB`."""
        value = self._get_scalar(key)
        if not isinstance(value, str):
            return self.integer(key)
        try:
            size = parse_bytes(value)
        except ValueError as error:
            self.problems.append(Problem(WRONG_VALUE, f"invalid size {quote_text(value)}", self.where_of(key), str(error)))
            return None
        if size < 1:
            message = f"invalid size {quote_text(value)}: must be at least 1 byte"
            self.problems.append(Problem(WRONG_VALUE, message, self.where_of(key)))
        return size

    def of(self, node: Node) -> MappingReader:
        """Return a reader of another mapping in the same recipe."""
        return MappingReader(node, self.problems, self._home, self.rebased_paths)

    def expand_shorthand(self, node: Node, key: str) -> MappingReader:
        """Return a reader of a node that is a mapping or a scalar. A scalar is short for a mapping from `key` to the scalar."""
        return self.of(expand_scalar(node, key))

    def reference(self, key: str) -> Reference:
        """Return the name at a key, with its position. The name is empty if the key is absent."""
        entry = self.entries.get(key)
        return Reference(get_text(entry.node), entry.node.where) if entry is not None else Reference("", self.where)

    def path(self, key: str) -> Reference | None:
        """Return the path at a key, relative to the recipe, or None if the key is absent."""
        text = self.text(key)
        return self.rebased(text, self.where_of(key)) if text else None

    def paths(self, key: str) -> tuple[Reference, ...]:
        """Return the paths in a list, or a single path, relative to the recipe."""
        return tuple(self.rebased(text, where) for text, where in self.one_or_more(key))

    def rebased(self, text: str, where: Position) -> Reference:
        """Convert the path `text`, which is written at `where`, to a path relative to the recipe. A backslash in it is a problem."""
        path = self.rebased_paths[where, text] = rebase_path(use_slashes(text, where, self.problems), where, self._home)
        return Reference(path, where)

    def setting(self, key: str) -> Setting | None:
        """Return the string at a key, with the positions of the string and the key, or None if the key is absent."""
        text = self.text(key)
        return Setting(text, self.where_of(key), self.entries[key].name_where) if text else None

    def output_path(self, key: str) -> Setting | None:
        """Return the path of emitted files at a key like `setting`. A backslash in it is a problem."""
        setting = self.setting(key)
        return setting and replace(setting, value=use_slashes(str(setting.value), setting.where, self.problems))

    def texts(self, key: str) -> list[tuple[str, Position]]:
        """Return the strings in a list with their positions."""
        return [
            (item.value, item.where) for item in self.items(key) if isinstance(item, ScalarNode) and isinstance(item.value, str)
        ]

    def one_or_more(self, key: str) -> list[tuple[str, Position]]:
        """Return the strings in a list, or a single string, with their positions."""
        text = self.text(key)
        return self.texts(key) if text is None else [(text, self.where_of(key))]

    def words(self, key: str) -> tuple[Setting, ...]:
        """Return the program and the arguments in a list."""
        return tuple(
            Setting(item.value, item.where, item.where)
            for item in self.items(key)
            if isinstance(item, ScalarNode) and item.value is not None
        )

    def numbers(self, key: str) -> list[float]:
        """Return the numbers of a list."""
        return [float(number) for item in self.items(key) if (number := self._read_number(item, "number")) is not None]

    def shapes(self, key: str) -> dict[str, InputShape]:
        """Return the shapes of inputs by name. An input with an invalid size is skipped."""
        fields, found = self.mapping(key), {}
        for name, entry in fields.entries.items():
            items = fields.items(name)
            sizes = tuple(int(size) for item in items if (size := self._read_number(item, "integer")) is not None and size >= 1)
            if isinstance(entry.node, SequenceNode) and len(sizes) == len(items) + entry.node.gaps:
                found[name] = InputShape(sizes, entry.node.where, tuple(item.where for item in items), entry.name_where)
        return found

    def settings(self, key: str) -> dict[str, Setting]:
        """Return the scalars of a mapping, by name."""
        if key not in self.entries:
            return {}
        return {
            name: Setting(entry.node.value, entry.node.where, entry.name_where)
            for name, entry in get_entries(self.entries[key].node).items()
            if isinstance(entry.node, ScalarNode) and entry.node.value is not None
        }

    def mapping(self, key: str) -> MappingReader:
        """Return a reader of a mapping. The reader has no keys if the mapping is absent."""
        entry = self.entries.get(key)
        if entry is not None:
            return self.of(entry.node)
        if self._absent is None:
            self._absent = self.of(MappingNode(self.where, {}, 1, 0))
            self._absent._absent = self._absent
        return self._absent

    def items(self, key: str) -> tuple[Node, ...]:
        """Return the items of a list."""
        entry = self.entries.get(key)
        return entry.node.items if entry is not None and isinstance(entry.node, SequenceNode) else ()

    def _read_number(self, node: Node, kind: Literal["number", "integer"]) -> float | None:
        """Return the number in a node, or None if a problem was added.

        The schema permits a template in place of some numbers. A template whose value is a string is a problem.
        """
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, str):
            self.problems.append(make_type_problem(node, kind))
            return None
        return value

    def _get_scalar(self, key: str) -> Scalar | None:
        entry = self.entries.get(key)
        return entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else None

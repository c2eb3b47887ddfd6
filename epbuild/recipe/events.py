"""Conversion of YAML events to the nodes of a recipe.

PyYAML's own loader is not used, because it guesses types as in YAML 1.1 (`no`, `1:30`, `0x1F`), keeps the last of two equal keys,
loses the positions of keys, and recurses without a limit. A large recipe has 100,000 events, so the code makes few function calls
per event.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from msgspec import Struct
from yaml import AliasEvent, Event, MappingEndEvent, NodeEvent, ScalarEvent, SequenceEndEvent, SequenceStartEvent, StreamEndEvent

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.nodes import (
    MAX_DEPTH,
    MAX_NODES,
    KeyedNode,
    MappingNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceNode,
    measure_extent,
)
from epbuild.recipe.problems import (
    DUPLICATE_KEY,
    SYNTAX,
    TOO_LARGE,
    UNUSABLE,
    WRONG_TYPE,
    WRONG_VALUE,
    format_code_point,
    quote_text,
)

# A number in JSON's syntax. Other forms that are numbers in some YAML version are text: `012`, `0x1F`, `1:30`, `1_000`, `.5`, `.inf`.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_MAX_INTEGER_LENGTH = len(str(-(1 << 63)))


class ReadText(Struct, frozen=True):
    """Nodes of a recipe's text, and problems that did not prevent parsing."""

    root: MappingNode
    problems: tuple[Problem, ...]


class EventReader:
    """Builder of nodes from events. It builds nodes bottom up, so that the size of an alias is known before its first use."""

    def __init__(self, events: Iterator[Any], file: str) -> None:
        self._events = events
        self._file = file
        self._anchors: dict[str, Node] = {}
        self._open_anchors: set[str] = set()
        self._count = 0
        self._problems: list[Problem] = []

    def read_text(self) -> ReadText:
        """Read all events of a recipe. Raises RecipeError if the recipe is not a single mapping or exceeds a limit."""
        next(self._events)  # the stream's start
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            self._stop(SYNTAX, "the recipe is empty", start, "Start it with 'epbuild: 1'.")
        root = self._read_node(next(self._events), depth=0)
        next(self._events)  # the document's end
        after = next(self._events)
        if not isinstance(after, StreamEndEvent):
            self._stop(SYNTAX, "a recipe must be a single YAML document; a second one starts here", after)
        if isinstance(root, ScalarNode) and root.value is None:
            self._stop(SYNTAX, "the recipe is empty", start, "Start it with 'epbuild: 1'.")
        if not isinstance(root, MappingNode):
            problem = Problem(WRONG_TYPE, "a recipe must be a mapping of keys to values", root.where)
            raise RecipeError(*self._problems, problem)
        return ReadText(root, tuple(self._problems))

    def _read_node(self, event: Any, depth: int) -> Node:
        if type(event) is AliasEvent:
            return self._resolve_alias(event, depth)
        if depth > MAX_DEPTH:
            self._stop_at_depth(event)
        self._count += 1
        if self._count > MAX_NODES:
            self._stop_at_size(event)
        if event.tag is not None:
            self._add_problem(
                SYNTAX, "YAML tags ('!') are not allowed in a recipe", event, "Remove the tag, and quote the value if it is text."
            )
        anchor: str | None = event.anchor
        if anchor is None:
            return self._read_scalar(event) if type(event) is ScalarEvent else self._read_content(event, depth)
        self._open_anchors.add(anchor)
        node = self._read_content(event, depth)
        self._open_anchors.discard(anchor)
        self._anchors[anchor] = node
        return node

    def _read_content(self, event: Any, depth: int) -> Node:
        if type(event) is ScalarEvent:
            return self._read_scalar(event)
        if type(event) is SequenceStartEvent:
            return self._read_sequence(event, depth)
        return self._read_mapping(event, depth)

    def _read_scalar(self, event: Any) -> ScalarNode:
        text: str = event.value
        # The text itself cannot contain such a character, but an escape sequence can produce it.
        if event.style == '"' and (unusable := UNUSABLE.search(text)):
            self._add_problem(WRONG_VALUE, f"the character {format_code_point(unusable[0])} is not allowed here", event)
            text = UNUSABLE.sub("\N{REPLACEMENT CHARACTER}", text)
        return ScalarNode(self._locate(event), _parse_plain_scalar(text) if event.implicit[0] else text, text)

    def _read_sequence(self, event: NodeEvent, depth: int) -> SequenceNode:
        items = []
        while type(item := next(self._events)) is not SequenceEndEvent:
            items.append(self._read_node(item, depth + 1))
        return SequenceNode(self._locate(event), tuple(items), *measure_extent(items))

    def _read_mapping(self, event: NodeEvent, depth: int) -> MappingNode:
        entries: dict[str, KeyedNode] = {}
        merged: list[MappingNode] = []
        merge_where: Position | None = None
        while type(key_event := next(self._events)) is not MappingEndEvent:
            key = self._read_node(key_event, depth + 1)
            value_event = next(self._events)
            value = self._read_node(value_event, depth + 1)
            if type(key) is not ScalarNode:
                self._add_problem(WRONG_TYPE, "a key must be a string, not a list or a mapping", key_event)
                continue
            written, is_written = key.written, type(key_event) is ScalarEvent
            name_where = key.where if is_written else self._locate(key_event)
            is_merge = written == "<<" and is_written and key_event.implicit[0]
            first = merge_where if is_merge else (entries[written].name_where if written in entries else None)
            if first is not None:
                place = f"line {first.line}, column {first.column}"
                self._add_problem(DUPLICATE_KEY, f"duplicate key {quote_text(written)}, first defined at {place}", key_event)
            elif is_merge:
                merge_where = name_where
                merged = self._find_merged(value, value_event)
            else:
                entries[written] = KeyedNode(name_where, value)
        for mapping in merged:
            for name, entry in mapping.entries.items():
                entries.setdefault(name, entry)
        return MappingNode(self._locate(event), entries, *measure_extent([entry.node for entry in entries.values()]))

    def _find_merged(self, value: Node, event: Event) -> list[MappingNode]:
        """Return the mappings under a merge key, whose `value` is a mapping or a list of mappings.

        Earlier mappings have precedence.
        """
        mappings = value.items if isinstance(value, SequenceNode) else (value,)
        found = [node for node in mappings if isinstance(node, MappingNode)]
        if len(found) < len(mappings):
            self._add_problem(WRONG_TYPE, "'<<' expects a mapping or a list of mappings", event)
        return found

    def _resolve_alias(self, event: Any, depth: int) -> Node:
        name: Any = event.anchor
        if name in self._open_anchors:
            self._stop(SYNTAX, f"the alias {quote_text('*' + name)} refers to a value that contains it", event)
        if name not in self._anchors:
            self._stop(SYNTAX, f"undefined alias {quote_text('*' + name)}: no anchor '&{name}' precedes the alias", event)
        node = self._anchors[name]
        if depth + node.height > MAX_DEPTH:
            self._stop_at_depth(event)
        self._count += node.size
        if self._count > MAX_NODES:
            self._stop_at_size(event)
        return node

    def _stop_at_size(self, event: Event) -> NoReturn:
        self._stop(TOO_LARGE, f"the recipe has more than {MAX_NODES:,} values with all aliases expanded", event)

    def _stop_at_depth(self, event: Event) -> NoReturn:
        self._stop(TOO_LARGE, f"this value is nested more than {MAX_DEPTH} levels deep", event)

    def _locate(self, event: Event) -> Position:
        mark: Any = event.start_mark
        return Position(self._file, mark.line + 1, mark.column + 1)

    def _add_problem(self, code: str, message: str, event: Event, hint: str | None = None) -> None:
        self._problems.append(Problem(code, message, self._locate(event), hint))

    def _stop(self, code: str, message: str, event: Event, hint: str | None = None) -> NoReturn:
        problem = Problem(code, message, self._locate(event), hint)
        raise RecipeError(*self._problems, problem)


@lru_cache(maxsize=4096)  # keys and values are often repeated
def _parse_plain_scalar(text: str) -> Scalar | None:
    """Return the value of an unquoted scalar. A number that needs more than 64 bits is returned as text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number[1]:
        value = float(text)
        return value if math.isfinite(value) else text
    return int(text) if len(text) <= _MAX_INTEGER_LENGTH and -(1 << 63) <= int(text) < 1 << 63 else text

"""The reader of a recipe's YAML text.

The reader follows YAML's events itself, because PyYAML's own loader guesses like YAML 1.1 (`no`, `1:30`, `0x1F`), keeps the last of
two equal keys, forgets where a key stood, and recurses without a bound.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.nodes import KeyedNode, MappingNode, Node, ScalarNode, SequenceNode, extent
from epbuild.recipe.problems import DUPLICATE_KEY, SYNTAX, TOO_LARGE, UNUSABLE, WRONG_TYPE, WRONG_VALUE, quoted

if TYPE_CHECKING:
    import yaml

    from epbuild.recipe.nodes import Scalar

MAX_BYTES = 1 << 20
"""The size of the largest text that is read."""

MAX_NODES = 250_000
"""How many values a recipe may have once every alias is written out."""

MAX_DEPTH = 50
"""How deep values may be nested."""


@dataclass(frozen=True)
class ReadText:
    """A recipe's text as nodes, and what is wrong with it that did not keep it from being read."""

    root: MappingNode
    problems: tuple[Problem, ...]


def read(content: bytes, file: str) -> ReadText:
    """The nodes of a recipe whose positions name `file`.

    Raises RecipeError when the text is not one YAML mapping, or is too large.
    """
    if len(content) > MAX_BYTES:
        problem = Problem(TOO_LARGE, f"A recipe has at most {MAX_BYTES:,} bytes; this file is larger.", Position(file, 1, 1))
        raise RecipeError(problem)
    return _parse(_decode(content, file), file)


def _decode(content: bytes, file: str) -> str:
    body = content.removeprefix(codecs.BOM_UTF8)
    hint = "Save the file as UTF-8."
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problem = Problem(SYNTAX, "The recipe is UTF-16 text.", Position(file, 1, 1), hint)
        raise RecipeError(problem)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        where = _end_of(body[: error.start].decode("utf-8"), file)
        problem = Problem(SYNTAX, f"The byte 0x{body[error.start]:02X} is not valid UTF-8.", where, hint)
        raise RecipeError(problem) from None
    if control := _CONTROL.search(text):
        where = _end_of(text[: control.start()], file)
        problem = Problem(SYNTAX, f"The control character {_code_point(control[0])} cannot be in YAML.", where)
        raise RecipeError(problem)
    return text


# What YAML calls non-printable.
_CONTROL = re.compile(r"[^\t\n\r\x20-\x7E\x85\xA0-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def _end_of(text: str, file: str) -> Position:
    lines = _LINE_BREAK.split(text)
    return Position(file, len(lines), len(lines[-1]) + 1)


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _parse(text: str, file: str) -> ReadText:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(yaml.parse(text, Loader=loader), file).source()
    except yaml.MarkedYAMLError as error:
        raise RecipeError(_syntax_problem(error, text, file)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # What PyYAML lets through without a mark: an escape such as "\UFFFFFFFF" in its pure Python scanner.
        problem = Problem(SYNTAX, f"This is not valid YAML: {error}.", Position(file, 1, 1))
        raise RecipeError(problem) from None


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    """PyYAML's error in one sentence, at the place where a person would look for the mistake."""
    mark, start = error.problem_mark, error.context_mark
    what = error.problem or "it cannot be read"
    if mark is None:
        return Problem(SYNTAX, f"This is not valid YAML: {what}.", Position(file, 1, 1))
    where = Position(file, mark.line + 1, mark.column + 1)
    found = text[mark.index : mark.index + 1]
    if found == "\t":
        return Problem(SYNTAX, "A tab cannot indent YAML.", where, "Use spaces.")
    if found == "{" and text[: mark.index].endswith("$"):
        hint = 'Write "${...}" in quotes when it stands inside [...] or {...}.'
        return Problem(SYNTAX, "A '{' cannot follow a plain '$' here.", where, hint)
    if "cannot start any token" in what:
        return Problem(SYNTAX, f"A plain text cannot start with '{found}'.", where, "Put it in quotes.")
    if what.startswith("mapping values are not allowed"):
        hint = "Check the indentation and the line above, or put a text that holds ': ' in quotes."
        return Problem(SYNTAX, "A ':' cannot stand here.", where, hint)
    if start is not None and what.startswith("could not find expected ':'"):
        where = Position(file, start.line + 1, start.column + 1)
        return Problem(SYNTAX, "A ':' is missing after this key.", where)
    end = len(text.rstrip())
    if start is not None and start.index < end <= mark.index:
        where = Position(file, start.line + 1, start.column + 1)
        return Problem(SYNTAX, "What starts here never ends.", where, "Close the bracket or the quote.")
    if end <= mark.index:
        return Problem(SYNTAX, "The recipe ends too early.", _end_of(text[:end], file), "Close the bracket or the quote.")
    context = f" {error.context}" if error.context else ""
    since = f" (from line {start.line + 1})" if start is not None and start.line != mark.line else ""
    return Problem(SYNTAX, f"This is not valid YAML: {what}{context}{since}.", where)


# A number as JSON writes it. Everything else that some YAML calls a number is text: `012`, `0x1F`, `1:30`, `1_000`, `.5`, `.inf`.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_LONGEST_INTEGER = len(str(-(1 << 63)))


def _plain_scalar(text: str) -> Scalar | None:
    """The value of a scalar without quotes. A number that 64 bits cannot hold stays the text that it is."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    if number[1]:
        value = float(text)
        return value if math.isfinite(value) else text
    return int(text) if len(text) <= _LONGEST_INTEGER and -(1 << 63) <= int(text) < 1 << 63 else text


class _Reader:
    """Builds nodes from events, bottom up, so that an alias is a node that already knows its size."""

    def __init__(self, events: Iterator[Any], file: str) -> None:
        self._events = events
        self._file = file
        self._anchors: dict[str, Node] = {}
        self._open_anchors: set[str] = set()
        self._count = 0
        self._problems: list[Problem] = []

    def source(self) -> ReadText:
        import yaml

        next(self._events)  # the stream's start
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            self._stop(SYNTAX, "The recipe is empty.", start, "Begin it with 'epbuild: 1'.")
        root = self._node(next(self._events), depth=0)
        next(self._events)  # the document's end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._stop(SYNTAX, "A recipe is one YAML document; a second one starts here.", after)
        if isinstance(root, ScalarNode) and root.value is None:
            self._stop(SYNTAX, "The recipe is empty.", start, "Begin it with 'epbuild: 1'.")
        if not isinstance(root, MappingNode):
            problem = Problem(WRONG_TYPE, "A recipe is a mapping of keys to values.", root.where)
            raise RecipeError(*self._problems, problem)
        return ReadText(root, tuple(self._problems))

    def _node(self, event: yaml.Event, depth: int) -> Node:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            node = self._anchored(event)
            if depth + node.height > MAX_DEPTH:
                self._too_deep(event)
            self._spend(node.size, event)
            return node
        if not isinstance(event, yaml.NodeEvent):
            raise TypeError(event)
        if depth > MAX_DEPTH:
            self._too_deep(event)
        self._spend(1, event)
        if getattr(event, "tag", None) is not None:
            self._note(SYNTAX, "A recipe has no tags ('!').", event, "Write the plain value; text may be in quotes.")
        if event.anchor is None:
            return self._content(event, depth)
        anchor: str = event.anchor
        self._open_anchors.add(anchor)
        node = self._content(event, depth)
        self._open_anchors.discard(anchor)
        self._anchors[anchor] = node
        return node

    def _content(self, event: yaml.NodeEvent, depth: int) -> Node:
        import yaml

        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, depth)
        return self._mapping(event, depth)

    def _scalar(self, event: yaml.ScalarEvent) -> ScalarNode:
        text: str = event.value
        if unusable := UNUSABLE.search(text):
            self._note(WRONG_VALUE, f"A text cannot hold the character {_code_point(unusable[0])} here.", event)
            text = UNUSABLE.sub("\N{REPLACEMENT CHARACTER}", text)
        return ScalarNode(self._where(event), _plain_scalar(text) if event.implicit[0] else text, text)

    def _sequence(self, event: yaml.NodeEvent, depth: int) -> SequenceNode:
        import yaml

        items = []
        while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(item, depth + 1))
        return SequenceNode(self._where(event), tuple(items), *extent(items))

    def _mapping(self, event: yaml.NodeEvent, depth: int) -> MappingNode:
        import yaml

        entries: dict[str, KeyedNode] = {}
        merged: list[MappingNode] = []
        merge_where: Position | None = None
        while not isinstance(key_event := next(self._events), yaml.MappingEndEvent):
            key = self._node(key_event, depth + 1)
            value_event = next(self._events)
            value = self._node(value_event, depth + 1)
            if not isinstance(key, ScalarNode):
                self._note(WRONG_TYPE, "A key is a text, not a list or a mapping.", key_event)
                continue
            name_where = self._where(key_event)
            is_merge = isinstance(key_event, yaml.ScalarEvent) and key_event.implicit[0] and key.written == "<<"
            first = merge_where if is_merge else getattr(entries.get(key.written), "name_where", None)
            if first is not None:
                place = f"line {first.line}, column {first.column}"
                self._note(
                    DUPLICATE_KEY,
                    f"The key {quoted(key.written)} is written twice; first at {place}.",
                    key_event,
                )
            elif is_merge:
                merge_where = name_where
                merged = self._merged(value, value_event)
            else:
                entries[key.written] = KeyedNode(name_where, value)
        for mapping in merged:
            for name, entry in mapping.entries.items():
                entries.setdefault(name, entry)
        return MappingNode(self._where(event), entries, *extent([entry.node for entry in entries.values()]))

    def _merged(self, value: Node, event: yaml.Event) -> list[MappingNode]:
        """What a merge key merges: one mapping, or a list of them of which the earlier wins."""
        mappings = value.items if isinstance(value, SequenceNode) else (value,)
        found = [node for node in mappings if isinstance(node, MappingNode)]
        if len(found) < len(mappings):
            self._note(WRONG_TYPE, "'<<' merges a mapping, or a list of mappings.", event)
        return found

    def _anchored(self, event: yaml.AliasEvent) -> Node:
        name: Any = event.anchor
        if name in self._open_anchors:
            self._stop(SYNTAX, f"The alias {quoted('*' + name)} stands inside what it refers to.", event)
        if name not in self._anchors:
            self._stop(SYNTAX, f"No anchor '&{name}' stands before the alias {quoted('*' + name)}.", event)
        return self._anchors[name]

    def _spend(self, nodes: int, event: yaml.Event) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            message = f"Here the recipe passes {MAX_NODES:,} values, its aliases written out."
            self._stop(TOO_LARGE, message, event)

    def _too_deep(self, event: yaml.Event) -> NoReturn:
        self._stop(TOO_LARGE, f"Values may be nested {MAX_DEPTH} deep, and this one is deeper.", event)

    def _where(self, event: yaml.Event) -> Position:
        mark: Any = event.start_mark
        return Position(self._file, mark.line + 1, mark.column + 1)

    def _note(self, code: str, message: str, event: yaml.Event, hint: str | None = None) -> None:
        self._problems.append(Problem(code, message, self._where(event), hint))

    def _stop(self, code: str, message: str, event: yaml.Event, hint: str | None = None) -> NoReturn:
        problem = Problem(code, message, self._where(event), hint)
        raise RecipeError(*self._problems, problem)

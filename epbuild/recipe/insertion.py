"""Insertion of definitions into the text of a recipe.

All other text stays as it is: comments, order, quotes and line breaks. After each insertion, the text is parsed again. It must have
the old values and the new definition, and nothing else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NoReturn

from msgspec import Struct

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.names import is_glob, name_of_text
from epbuild.recipe.nodes import Node, ScalarNode, SequenceNode, get_entries, to_plain
from epbuild.recipe.problems import BAD_NAME, quote_text
from epbuild.recipe.source import read
from epbuild.recipe.yaml_text import format_flow, format_scalar

CANNOT_EDIT = "EPB111"
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Definition(Struct, frozen=True):
    """Definition to insert. `lines` are its YAML in block style, beginning with its name."""

    name: str
    lines: Sequence[str]

    def read_value(self) -> Node:
        """Return the value of the definition as a node."""
        return read("\n".join(self.lines).encode(), "").root.entries[self.name].node


def insert_definition(content: bytes, file: str, section: str, definition: Definition) -> bytes:
    """Return the recipe with a definition at the end of a section. Create the section if it is missing.

    A list of models becomes a mapping if the definition needs one. Raises RecipeError if the name exists, or if the definition cannot be
    inserted without changing other values.
    """
    root = read(content, file).root
    entry = root.entries.get(section)
    found = get_entries(entry.node).get(definition.name) if entry is not None else None
    if found is not None:
        _refuse_name(section, definition, found.name_where)
    if entry is not None and isinstance(entry.node, ScalarNode) and entry.node.value is not None:
        message = f"'{section}' is a single path or pattern, so no other definition can be added"
        raise RecipeError(Problem(CANNOT_EDIT, message, entry.node.where, f"Write `{section}` as a list or a mapping."))
    value = definition.read_value()
    expected: dict[str, Any] = to_plain(root)  # type: ignore[assignment]
    where = entry.node.where if entry is not None else root.where
    text = content.removeprefix(codecs.BOM_UTF8).decode()
    span = _read_spans(text).get(section)
    if entry is not None and isinstance(entry.node, SequenceNode) and _is_list_item(definition, value):
        expected[section].append(to_plain(value))
    elif entry is not None and isinstance(entry.node, SequenceNode):
        items = _name_items(entry.node, section)
        if definition.name in items:
            _refuse_name(section, definition, entry.node.where)
        text = _convert_list(text, _require_span(span, section, where), list(items))
        span = _read_spans(text).get(section)
        expected[section] = {**items, definition.name: to_plain(value)}
    else:
        expected[section] = {**(expected.get(section) or {}), definition.name: to_plain(value)}
    if span is not None and not (span.kind in ("mapping", "sequence") or span.is_empty):
        _refuse(section, where)
    text = _insert(text, section, span, definition, value)
    changed = content[: len(content) - len(content.removeprefix(codecs.BOM_UTF8))] + text.encode()
    try:
        is_right = to_plain(read(changed, file).root) == expected
    except RecipeError:
        is_right = False
    if not is_right:
        _refuse(section, where)
    return changed


def _refuse(section: str, where: Position) -> NoReturn:
    message = f"a definition cannot be added to '{section}' without changing other values of the recipe"
    raise RecipeError(Problem(CANNOT_EDIT, message, where, "Edit the recipe by hand."))


def _refuse_name(section: str, definition: Definition, where: Position) -> NoReturn:
    message = f"the recipe already has {quote_text(definition.name)} in '{section}'"
    raise RecipeError(Problem(BAD_NAME, message, where, "Choose another name, as in NAME=VALUE."))


def _require_span(span: _Span | None, section: str, where: Position) -> _Span:
    if span is None or span.kind != "sequence":
        _refuse(section, where)
    return span


def _is_list_item(definition: Definition, value: Node) -> bool:
    """Return whether a list of paths can hold the model, because the model has no settings and the name of its file."""
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str) or is_glob(value.value):
        return False
    return name_of_text(PurePosixPath(value.value).stem) == definition.name


def _name_items(models: SequenceNode, section: str) -> dict[str, object]:
    """Return the items of a list of models by name. Raises RecipeError if the list has a pattern or a template."""
    items: dict[str, object] = {}
    for item in models.items:
        path = str(to_plain(item))
        if is_glob(path) or "${" in path:
            message = f"'{section}' is a list with the pattern {quote_text(path)}, and the new model needs settings"
            hint = f"Write `{section}` as a mapping of names to models."
            raise RecipeError(Problem(CANNOT_EDIT, message, item.where, hint))
        items[name_of_text(PurePosixPath(path).stem)] = path
    return items


class _Span(Struct):
    """Value in the text, as offsets. `end` is the end of its last character, before comments and line breaks."""

    kind: str
    start: int
    end: int
    flow: bool = False
    children: list[tuple[int, _Span]] = []
    """Start of each key and its value. In a list, start of each item and the item."""

    @property
    def is_empty(self) -> bool:
        """True for a key without a value."""
        return self.kind == "scalar" and self.start == self.end


def _read_spans(text: str) -> dict[str, _Span]:
    """Return the values of the recipe's own keys. The key `""` has the whole recipe."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events = iter(yaml.parse(text, Loader=loader))
    next(events)
    next(events)
    names: list[str] = []
    root = _read_span(next(events), events, names)
    return {"": root, **dict(zip(names, (span for _, span in root.children), strict=False))}


def _read_span(event: Any, events: Iterator[Any], names: list[str] | None = None) -> _Span:
    """Read one value. Append the texts of its keys to `names`."""
    start, end = event.start_mark.index, event.end_mark.index
    kind = type(event).__name__.removesuffix("Event").removesuffix("Start").lower()
    if kind not in ("mapping", "sequence"):
        return _Span(kind, start, end)
    children = []
    while not type(first := next(events)).__name__.endswith("EndEvent"):
        child = _read_span(first, events)
        if kind == "mapping":
            if names is not None:
                names.append(getattr(first, "value", ""))
            child = _read_span(next(events), events)
        children.append((first.start_mark.index, child))
    if event.flow_style:
        end = first.end_mark.index
    elif children:
        end = children[-1][1].end
    return _Span(kind, start, end, bool(event.flow_style), children)


def _insert(text: str, section: str, span: _Span | None, definition: Definition, value: Node) -> str:
    """Insert a definition into a section. `span` is None if the section is missing."""
    root = _read_spans(text)[""]
    item = format_flow(value)
    entry = f"{format_scalar(definition.name)}: {item}"
    if span is None and root.flow:
        return _insert_in_flow(text, root, f"{section}: {{{entry}}}")
    if span is None:
        lines = [f"{section}:", *(f"  {line}" for line in definition.lines)]
        return _insert_lines(text, root.end, _find_margin(text, root), lines)
    if span.flow:
        return _insert_in_flow(text, span, item if span.kind == "sequence" else entry)
    if span.kind == "sequence":
        dash = text.rfind("-", 0, span.children[-1][0])
        return _insert_lines(text, span.end, _find_line(text, dash), [f"- {item}"])
    if span.kind == "mapping":
        return _insert_lines(text, span.end, _find_margin(text, span), definition.lines)
    return _insert_lines(text, span.end, f"{_find_margin(text, root)}  ", definition.lines)


def _insert_in_flow(text: str, span: _Span, item: str) -> str:
    """Insert an item after the last item of a collection in brackets or braces."""
    at = span.children[-1][1].end if span.children else span.end - 1
    return f"{text[:at]}{', ' if span.children else ''}{item}{text[at:]}"


def _insert_lines(text: str, end: int, margin: str, lines: Sequence[str]) -> str:
    """Insert lines below the line in which a value ends at the offset `end`."""
    found = _LINE_BREAK.search(text, end)
    first = found or _LINE_BREAK.search(text)
    line_break = first[0] if first is not None else "\n"
    if text.endswith(("\n", "\r"), 0, end):  # A block scalar includes its last line break.
        found, at = None, end
    else:
        at = found.end() if found is not None else len(text)
    written = "".join(f"{margin}{line}{line_break}" for line in lines)
    if found is None and not text.endswith(("\n", "\r"), 0, at):
        written = line_break + written.removesuffix(line_break)
    return f"{text[:at]}{written}{text[at:]}"


def _find_margin(text: str, span: _Span) -> str:
    return _find_line(text, span.children[0][0])


def _find_line(text: str, offset: int) -> str:
    """Return the text before an offset in its line."""
    breaks = [found.end() for found in _LINE_BREAK.finditer(text, 0, offset)]
    return text[breaks[-1] if breaks else 0 : offset]


def _convert_list(text: str, span: _Span, names: Sequence[str]) -> str:
    """Return the text with a list of models as a mapping. Names replace the dashes of a list with one item per line."""
    if span.flow:
        text = f"{text[: span.end - 1]}}}{text[span.end :]}"
    for name, (start, _) in reversed(list(zip(names, span.children, strict=True))):
        at, end = (start, start) if span.flow else (text.rfind("-", 0, start), start)
        space = " " if span.flow else text[at + 1 : end]
        text = f"{text[:at]}{format_scalar(name)}:{space}{text[end:]}"
    return f"{text[: span.start]}{{{text[span.start + 1 :]}" if span.flow else text

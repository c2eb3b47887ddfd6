"""Insertion of definitions into the text of a recipe.

All other text stays as it is: comments, order, quotes and line breaks. After each insertion, the text is parsed again. It must have
the old values and the new definition, and nothing else.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.names import is_glob, name_of_text
from epbuild.recipe.nodes import Node, ScalarNode, SequenceNode, get_entries, get_node, to_plain
from epbuild.recipe.problems import BAD_NAME, quote_text
from epbuild.recipe.source import LINE_BREAK, read
from epbuild.recipe.yaml_text import format_flow, format_scalar

CANNOT_EDIT = "EPB111"


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
    node = get_node(root.entries, section)
    if node is not None:
        _check_section(section, node, definition)
    value = definition.read_value()
    before: dict[str, Any] = to_plain(root)  # type: ignore[assignment]
    body = content.removeprefix(codecs.BOM_UTF8)
    text = body.decode()
    if isinstance(node, SequenceNode) and _is_list_item(definition, value):
        wanted: object = [*before[section], to_plain(value)]
    elif isinstance(node, SequenceNode):
        names = _name_items(section, node, definition)
        text = _convert_list(text, section, names)
        wanted = {**dict(zip(names, before[section], strict=True)), definition.name: to_plain(value)}
    else:
        wanted = {**(before.get(section) or {}), definition.name: to_plain(value)}
    text = _insert(text, section, definition, value)
    changed = content[: len(content) - len(body)] + text.encode()
    if not _has_values(changed, {**before, section: wanted}):
        message = f"a definition cannot be added to '{section}' without changing other values of the recipe"
        raise RecipeError(Problem(CANNOT_EDIT, message, (node or root).where, "Edit the recipe by hand."))
    return changed


def _has_values(content: bytes, wanted: Mapping[str, object]) -> bool:
    try:
        return to_plain(read(content, "").root) == wanted
    except RecipeError:
        return False


def _check_section(section: str, node: Node, definition: Definition) -> None:
    """Raise RecipeError if the section has the name already, or is a single text."""
    found = get_entries(node).get(definition.name)
    if found is not None:
        raise _make_name_error(section, definition, found.name_where)
    if isinstance(node, ScalarNode) and node.value is not None:
        message = f"'{section}' is a single path or pattern, so no other definition can be added"
        raise RecipeError(Problem(CANNOT_EDIT, message, node.where, f"Write `{section}` as a list or a mapping."))


def _make_name_error(section: str, definition: Definition, where: Position) -> RecipeError:
    message = f"the recipe already has {quote_text(definition.name)} in '{section}'"
    return RecipeError(Problem(BAD_NAME, message, where, "Choose another name, as in NAME=VALUE."))


def _is_list_item(definition: Definition, value: Node) -> bool:
    """Return whether a list of paths can hold the model: it has no settings, and its name is that of its file."""
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str) or is_glob(value.value):
        return False
    return name_of_text(PurePosixPath(value.value).stem) == definition.name


def _name_items(section: str, models: SequenceNode, definition: Definition) -> list[str]:
    """Return the names of the models in a list. Raises RecipeError if an item has no name of its own."""
    names: list[str] = []
    for item in models.items:
        path = str(to_plain(item))
        name = name_of_text(PurePosixPath(path).stem)
        if is_glob(path) or "${" in path or name in ("", *names):
            message = f"'{section}' is a list with {quote_text(path)}, and the new model needs settings"
            hint = f"Write `{section}` as a mapping of names to models."
            raise RecipeError(Problem(CANNOT_EDIT, message, item.where, hint))
        if name == definition.name:
            raise _make_name_error(section, definition, item.where)
        names.append(name)
    return names


class _Span(Struct):
    """Value in the text, as offsets. `end` is the end of its last character, before comments and line breaks."""

    kind: str
    start: int
    end: int
    flow: bool = False
    children: list[tuple[int, _Span]] = []
    """Start of each key and its value. In a list, start of each item and the item."""


def _read_spans(text: str) -> dict[str, _Span]:
    """Return the spans of the top-level values, by key. The key `""` has the span of the whole recipe."""
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


def _insert(text: str, section: str, definition: Definition, value: Node) -> str:
    """Insert a definition into a section. Return the text unchanged if the section is an alias or a text."""
    spans = _read_spans(text)
    root, span = spans[""], spans.get(section)
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
    if span.start == span.end:  # a key without a value
        return _insert_lines(text, span.end, f"{_find_margin(text, root)}  ", definition.lines)
    return text


def _insert_in_flow(text: str, span: _Span, item: str) -> str:
    """Insert an item after the last item of a collection in brackets or braces."""
    at = span.children[-1][1].end if span.children else span.end - 1
    return f"{text[:at]}{', ' if span.children else ''}{item}{text[at:]}"


def _insert_lines(text: str, end: int, margin: str, lines: Sequence[str]) -> str:
    """Insert lines below the line in which a value ends at the offset `end`."""
    found = LINE_BREAK.search(text, end)
    first = found or LINE_BREAK.search(text)
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
    breaks = [found.end() for found in LINE_BREAK.finditer(text, 0, offset)]
    return text[breaks[-1] if breaks else 0 : offset]


def _convert_list(text: str, section: str, names: Sequence[str]) -> str:
    """Return the text with a list of models as a mapping. Names replace the dashes of a list with one item per line.

    Return the text unchanged if the section is an alias.
    """
    span = _read_spans(text)[section]
    if span.kind != "sequence":
        return text
    if span.flow:
        text = f"{text[: span.end - 1]}}}{text[span.end :]}"
    for name, (start, _) in reversed(list(zip(names, span.children, strict=True))):
        at, end = (start, start) if span.flow else (text.rfind("-", 0, start), start)
        space = " " if span.flow else text[at + 1 : end]
        text = f"{text[:at]}{format_scalar(name)}:{space}{text[end:]}"
    return f"{text[: span.start]}{{{text[span.start + 1 :]}" if span.flow else text

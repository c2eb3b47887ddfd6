"""Error codes for recipes, and formatting of types and values for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from epbuild.core.errors import Problem, escape_controls
from epbuild.core.redact import conceal_text
from epbuild.recipe.nodes import MappingNode, Node, ScalarNode, SequenceNode, render

CANNOT_READ: Final = "EPB100"
SYNTAX: Final = "EPB101"
DUPLICATE_KEY: Final = "EPB102"
UNKNOWN_KEY: Final = "EPB103"
MISSING_KEY: Final = "EPB104"
WRONG_TYPE: Final = "EPB105"
WRONG_VALUE: Final = "EPB106"
BAD_NAME: Final = "EPB107"
UNKNOWN_REFERENCE: Final = "EPB108"
TEMPLATE: Final = "EPB109"
TOO_LARGE: Final = "EPB110"

UNUSABLE: Final = re.compile(r"[\0\uD800-\uDFFF]")
"""Characters that file names and JSON documents cannot contain."""

_MAX_QUOTE = 80
_MAX_LIST = 30
_EXPECTED = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def quote_text(text: str) -> str:
    """Return `text` in quotes on one line. Conceal values of environment variables, and omit the middle of a long text."""
    text = conceal_text(text)
    if len(text) > _MAX_QUOTE:
        half = _MAX_QUOTE // 2
        text = f"{text[:half]}…{text[-half:]}"
    return f"'{escape_controls(text)}'"


def format_code_point(character: str) -> str:
    """Format a character as a Unicode code point, such as `U+00AD`."""
    return f"U+{ord(character):04X}"


def format_choices(words: Iterable[str]) -> str:
    """Return a list of allowed words for a hint, or `nothing` if the list is empty."""
    known = list(words)
    shown = ", ".join(known[:_MAX_LIST])
    if len(known) > _MAX_LIST:
        return f"{shown} and {len(known) - _MAX_LIST} more"
    return shown or "nothing"


def make_type_problem(node: Node, types: str | list[str]) -> Problem:
    """Return the problem of a value of the wrong type. `types` has the valid types, as named by JSON Schema."""
    expected = [types] if isinstance(types, str) else types
    *most, last = [_EXPECTED[name] for name in expected]
    words = f"{', '.join(most)} or {last}" if most else last
    hint = None
    if isinstance(node, ScalarNode) and "string" in expected and not node.written.startswith("${"):
        hint = f'Put it in quotes to make it a string: "{node.written}".' if node.value is not None else None
    return Problem(WRONG_TYPE, f"expected {words}, found {describe_type(node)}", node.where, hint)


def describe_type(node: Node) -> str:
    """Describe the type of a value for a message."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    if node.value is None:
        return "no value"
    if node.written.startswith("${env."):
        return f"the value of {quote_text(node.written)}"
    if node.written.startswith("${") and node.value != node.written:
        return f"{quote_text(render(node.value))}, the value of {quote_text(node.written)}"
    if isinstance(node.value, str):
        return f"the string {quote_text(node.written)}"
    if isinstance(node.value, bool):
        return f"the boolean {quote_text(node.written)}"
    return f"the number {quote_text(node.written)}"

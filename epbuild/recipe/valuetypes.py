"""The types of a recipe's values, in words."""

from __future__ import annotations

from epbuild.core.errors import Problem
from epbuild.recipe.nodes import MappingNode, Node, ScalarNode, SequenceNode, render
from epbuild.recipe.problems import WRONG_TYPE, quoted


def wrong_type(node: Node, types: str | list[str]) -> Problem:
    """The problem of a value that is none of the JSON Schema `types`."""
    expected = [types] if isinstance(types, str) else types
    *most, last = [_EXPECTED[name] for name in expected]
    words = f"{', '.join(most)} or {last}" if most else last
    hint = None
    if isinstance(node, ScalarNode) and "string" in expected and not node.written.startswith("${"):
        hint = f'In quotes it is a string: "{node.written}".' if node.value is not None else None
    return Problem(WRONG_TYPE, f"{actual(node)}; write {words}.", node.where, hint)


_EXPECTED = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def actual(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "This is a mapping"
    if isinstance(node, SequenceNode):
        return "This is a list"
    if node.value is None:
        return "There is no value here"
    if node.written.startswith("${") and node.value != node.written:
        return f"{quoted(node.written)} is {quoted(render(node.value))} here"
    if isinstance(node.value, str):
        return f"{quoted(node.written)} is a string here"
    if isinstance(node.value, bool):
        return f"{quoted(node.written)} is a boolean here"
    return f"{quoted(node.written)} is a number here"

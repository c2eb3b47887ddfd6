"""Style of messages: fragments without a leading capital or a full stop. Hints are sentences with the next action."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "epbuild"
NAMES = {"Git", "Hugging", "Linux", "Python", "Windows"}
"""Names with a leading capital. Words with a capital in the middle, such as EPContext, are names anyway."""


def literal_ends(node: ast.expr, names: dict[str, list[ast.expr]]) -> Iterator[tuple[str, str]]:
    """Yield the literal start and end of each possible message; empty where an inserted value is there."""
    match node:
        case ast.Constant(value=str(text)):
            yield text, text
        case ast.JoinedStr(values=[first, *_] as values):
            ends = (
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
                for part in (first, values[-1])
            )
            yield next(ends), next(ends)
        case ast.IfExp(body=body, orelse=other):
            yield from literal_ends(body, names)
            yield from literal_ends(other, names)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            start = next(literal_ends(left, names), ("", ""))[0]
            yield start, next(literal_ends(right, names), ("", ""))[1]
        case ast.Name(id=name):
            for value in names.pop(name, []):
                yield from literal_ends(value, names)


def messages(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the position of each message of a module and its literal ends. Variables are resolved in their function."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef):
            continue
        names: dict[str, list[ast.expr]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(scope):
            match node:
                case (
                    ast.Call(func=ast.Name(id="Problem"), args=[_, message, *_])
                    | ast.Call(func=ast.Name(id="UsageError" | "TemplateError"), args=[message, *_])
                    | ast.Call(func=ast.Name(id="BadReference" | "MissingReference"), args=[message, *_])
                    | ast.Call(func=ast.Attribute(attr="_note" | "_stop"), args=[_, message, *_])
                    | ast.Call(func=ast.Name(id="_refused"), args=[_, message, *_])
                ):
                    for start, end in literal_ends(message, dict(names)):
                        yield node.lineno, start, end


def faults(source: str) -> dict[str, int]:
    """Return the lines of messages that are not fragments, by their ends."""
    found = {}
    for line, start, end in messages(ast.parse(source)):
        word = (start.split() or [""])[0].rstrip(",:")
        if word.istitle() and word not in NAMES:
            found[start] = line
        if end.endswith(".") and not end.endswith("..."):
            found[end] = line
    return found


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"))
def test_every_message_is_a_fragment(room: str) -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in (PACKAGE / room).rglob("*.py")}
    found = {name: faults(path.read_text(encoding="utf-8")) for name, path in files.items()}
    assert {name: ends for name, ends in found.items() if ends} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('return Problem("EPB1", "Not a fragment", None)', ["Not a fragment"]),
        ('return Problem("EPB1", f"{x} is not one, either.")', [" is not one, either."]),
        ('message = "not one." if x else "EPContext nodes"; return Problem("EPB1", message)', ["not one."]),
        ('message = f"Cannot " + "be"; return Problem("EPB1", message)', ["Cannot "]),
        ('return Problem("EPB1", f"invalid size: {x}", None, "Write a number.")', []),
        ('return Problem("EPB1", f"Windows has no file {x}...")', []),
    ],
)
def test_messages_that_are_not_fragments_are_detected(source: str, expected: list[str]) -> None:
    assert list(faults(f"def f():\n    {source}")) == expected

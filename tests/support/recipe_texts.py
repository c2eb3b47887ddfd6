"""Changes of a recipe's text, and marks of expected problem positions."""

from __future__ import annotations

from collections.abc import Sequence

from epbuild.core.errors import Position, Problem

MARK = "‸"
"""Mark before the character that a problem must point at."""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Replace every occurrence of each old part of `text`, which must occur, with the new one."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def places(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return `text` without its marks, and the line and column of each."""
    found = []
    while MARK in text:
        before, after = text.split(MARK, 1)
        found.append((before.count("\n") + 1, len(before) - before.rfind("\n")))
        text = before + after
    return text, found


def codes_and_places(problems: Sequence[Problem]) -> list[tuple[str, int, int]]:
    """Return the code and the place of each problem."""
    found = []
    for problem in problems:
        assert isinstance(problem.where, Position), problem
        found.append((problem.code, problem.where.line, problem.where.column))
    return found

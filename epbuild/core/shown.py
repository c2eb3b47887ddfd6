"""Paths and progress as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ProgressLines(Protocol):
    """Gets lines about what takes long."""

    def report(self, text: str, /) -> None:
        """How far it is."""


class NoProgressLines:
    """Those that nobody reads."""

    def report(self, text: str, /) -> None:
        pass


NO_LINES = NoProgressLines()


def shown_path(path: Path) -> str:
    """A path as short as it can be: relative to the current directory when it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)

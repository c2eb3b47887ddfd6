"""Paths as people read them."""

from __future__ import annotations

from pathlib import Path


def shown_path(path: Path) -> str:
    """A path as short as it can be: relative to the current directory when it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)

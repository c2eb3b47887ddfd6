"""What each error code means and what to do, from docs/errors.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ADDRESS = "https://github.com/epbuild/epbuild/blob/main/docs/errors.md"
_PACKAGE = Path(__file__).parents[2]
_ROW = re.compile(r"^\| (EPB\d{3}) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class ErrorHelp(NamedTuple):
    """Two texts in sentences, in Markdown without links."""

    meaning: str
    what_to_do: str


@cache
def error_help() -> dict[str, ErrorHelp]:
    """The help for each code."""
    shipped = _PACKAGE / "_docs" / "errors.md"
    path = shipped if shipped.is_file() else _PACKAGE.parent / "docs" / "errors.md"
    rows = _ROW.findall(_LINK.sub(r"\1", path.read_text(encoding="utf-8")))
    return {code: ErrorHelp(meaning, what_to_do) for code, meaning, what_to_do in rows}

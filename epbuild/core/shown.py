"""Paths, progress and foreign text as people read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from epbuild.core.errors import printable

# What a CI service obeys in a log: `::error::` at the start of a line (GitHub), `##[error]` and `##vso[...]` anywhere (GitHub, Azure).
_COMMAND = re.compile(r"(^\s*):(?=:)|()#(?=#\w*\[)")
_COLOR = re.compile("\x1b\\[[0-9;]*m")


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


def visible(line: str) -> str:
    """Return a line with everything spelled out that a terminal or a CI service would obey: control and bidi characters, log commands."""
    return _COMMAND.sub(lambda found: f"{found[1] or ''}\\x{ord(found[0][-1]):02x}", printable(line))


def visible_log(text: str) -> str:
    """Return the lines of a log as `visible` has them, without the colors that ONNX Runtime writes; tabs and ends of lines stay."""
    lines = (_COLOR.sub("", line).split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(visible, parts)) for parts in lines)

"""Formatting of text for terminals and logs: paths, progress, untrusted text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from epbuild.core.errors import escape_controls

# CI services execute commands in logs: `::error::` at the start of a line (GitHub), and `##[error]` and `##vso[...]` anywhere
# (GitHub, Azure).
_COMMAND = re.compile(r"(^\s*):(?=:)|()#(?=#\w*\[)")
_COLOR = re.compile("\x1b\\[[0-9;]*m")


class ProgressLines(Protocol):
    """Receiver of lines about slow work."""

    def report(self, text: str, /) -> None:
        """Report progress."""


class NoProgressLines:
    """Receiver that discards progress lines."""

    def report(self, text: str, /) -> None:
        pass


NO_LINES = NoProgressLines()


def format_path(path: Path) -> str:
    """Return a path as text. A path below the current directory becomes relative to it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def escape_sequences(line: str) -> str:
    """Escape control characters, bidi characters and log commands, so that no terminal or CI service executes them."""
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[0][-1]):02x}", escape_controls(line))


def escape_log(text: str) -> str:
    """Escape every line of a log, and remove ONNX Runtime's colors. Tabs and line endings are kept."""
    lines = (_COLOR.sub("", line).split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(escape_sequences, parts)) for parts in lines)

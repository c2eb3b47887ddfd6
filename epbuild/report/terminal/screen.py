"""Terminal output: colors, lines, and capabilities of terminals."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from epbuild.core.errors import escape_controls
from epbuild.core.host import is_windows
from epbuild.core.shown import escape_sequences
from epbuild.core.user_settings import find_settings

WIDTH = 80
"""Number of columns where there is no terminal."""
MIN_WIDTH, MAX_WIDTH = 40, 120
_PAINT = re.compile("(\x1b\\[(?:[012]|3[0-9])m)")
BOLD, DIM = "1", "2"
"""Terminal codes for `paint`."""


def print_line(text: str, stream: Any = None) -> None:
    """Write a line, by default to standard output. Escape all control characters except color codes from `paint`."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{escape_line(text, stream)}\n")


def print_lines(lines: Iterable[str]) -> None:
    """Write many lines to standard output at once. They are escaped as in `print_line`."""
    sys.stdout.write("".join(f"{escape_line(line, sys.stdout)}\n" for line in lines))


def escape_line(text: str, stream: Any) -> str:
    """Escape all control characters except color codes from `paint`."""
    if text.isprintable() or not has_colors(stream):
        return escape_sequences(text)
    return "".join(part if number % 2 else escape_sequences(part) for number, part in enumerate(_PAINT.split(text)))


def wrap(text: str, first: str = "", others: str = "", *, width: int | None = None) -> list[str]:
    """Wrap text into lines of at most `width` columns, by default `get_text_width()`. Words are never broken.

    The first line begins with `first` and the other lines with `others`.
    """
    return textwrap.wrap(
        escape_controls(text),
        get_text_width() if width is None else width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def paint(text: str, code: str, color: bool) -> str:
    """Return text with a terminal color code, if `color` is set."""
    return f"\x1b[{code}m{escape_controls(text)}\x1b[0m" if color else text


def has_colors(stream: Any) -> bool:
    """Return whether to write colors: never with NO_COLOR, always with FORCE_COLOR, or else as in the user's settings.

    By default, colors are written only on a capable terminal.

    Empty variables are ignored (https://no-color.org, https://force-color.org). NO_COLOR has priority, as in Python itself.
    """
    if os.environ.get("NO_COLOR"):
        return False
    is_capable = is_screen(stream)  # On Windows, this enables the sequences that forced colors need as well.
    if os.environ.get("FORCE_COLOR"):
        return True
    chosen = find_settings().get("color", "auto")
    return is_capable if chosen == "auto" else bool(chosen == "always")


def is_screen(stream: Any) -> bool:
    """Return whether `stream` is a terminal that understands control sequences. On Windows, enable these sequences."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    if not is_windows():
        return True
    from epbuild.core.windows import enable_sequences

    try:
        return enable_sequences(stream.fileno())
    except (AttributeError, io.UnsupportedOperation):  # a stream of the calling program
        return True


def get_width() -> int:
    """Return the width of tables: that of the terminal, or 80 columns elsewhere."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if is_screen(sys.stdout) else WIDTH


def get_text_width() -> int:
    """Return the width of sentences: that of the terminal if it has 40 to 120 columns, or 80 elsewhere."""
    return max(MIN_WIDTH, min(get_width(), MAX_WIDTH))


def is_github_actions() -> bool:
    """Return whether this process runs in GitHub Actions or a compatible CI system."""
    return os.environ.get("GITHUB_ACTIONS") == "true"

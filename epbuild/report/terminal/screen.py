"""Terminals: colors, lines, and whether there is a screen."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from epbuild.core.errors import printable
from epbuild.core.host import on_windows
from epbuild.core.shown import visible

WIDTH = 80
_PAINT = re.compile("(\x1b\\[(?:[012]|3[0-9])m)")
BOLD, DIM = "1", "2"
"""Codes of `paint`."""


def print_line(text: str, stream: Any = None) -> None:
    """Write a line, of which only the codes of `paint` are obeyed; by default to standard output."""
    stream = sys.stdout if stream is None else stream
    stream.write(f"{escape_line(text, stream)}\n")


def print_lines(lines: Iterable[str]) -> None:
    """Write many lines at once to standard output, each as `print_line` does."""
    sys.stdout.write("".join(f"{escape_line(line, sys.stdout)}\n" for line in lines))


def escape_line(text: str, stream: Any) -> str:
    """Return a line in which only the codes of `paint` are left to be obeyed."""
    if text.isprintable() or not has_colors(stream):
        return visible(text)
    return "".join(part if number % 2 else visible(part) for number, part in enumerate(_PAINT.split(text)))


def wrap(text: str, first: str = "", others: str = "", *, width: int = WIDTH, long_words: bool = True) -> list[str]:
    """A text in lines that begin with `first` and `others`, and break between words only, or where a word is too long as well."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=long_words,
        break_on_hyphens=False,
    )


def paint(text: str, code: str, color: bool) -> str:
    """`text` in the color of a terminal's `code`, where there are colors."""
    return f"\x1b[{code}m{printable(text)}\x1b[0m" if color else text


def has_colors(stream: Any) -> bool:
    """Whether to write colors to `stream`: never with NO_COLOR, always with FORCE_COLOR, else on a terminal that has some.

    Either variable counts unless it is empty (https://no-color.org, https://force-color.org); as in Python itself, NO_COLOR wins.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return is_screen(stream) or bool(os.environ.get("FORCE_COLOR"))


def is_screen(stream: Any) -> bool:
    """Whether `stream` goes to a terminal that can do more than show one line after another; one of Windows is made to."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    if not on_windows():
        return True
    from epbuild.core.windows import shows_sequences

    return shows_sequences(stream.fileno())


def under_github_actions() -> bool:
    """Whether this is a step of a workflow of GitHub Actions, or of a system that does as it does."""
    return os.environ.get("GITHUB_ACTIONS") == "true"

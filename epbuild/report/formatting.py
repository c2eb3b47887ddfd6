"""Formatting of amounts, lists and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from epbuild.core.errors import escape_controls
from epbuild.core.shown import format_path
from epbuild.engine.events import DiskNeeded
from epbuild.report.terminal.screen import WIDTH, get_text_width, wrap

_MAX_OPEN_ROWS = 12
"""Maximum number of rows in an unfolded Markdown table."""
_MAX_CODE = 120
_GAP = 2
UNKNOWN_PARTS = "unknown: the EP lists no parts of this context"


def format_size(size: int) -> str:
    """Format a number of bytes with a decimal unit."""
    from rich.filesize import decimal

    return decimal(size)


def format_part(kind: str, name: str) -> str:
    """Return the title of a part of a file, such as `graph decode` or `shared weights`."""
    return f"{kind} {name}".rstrip()


def format_disk(event: DiskNeeded) -> str:
    """Return a sentence about the bytes that a build writes."""
    place = f"the file system of {format_path(event.folder)}, where {format_size(event.free)} are free"
    return f"The build writes about {format_size(event.size)} to {place}."


def format_size_change(size: int) -> str:
    """Format a difference in bytes with its sign."""
    return f"{'-' if size < 0 else '+'}{format_size(abs(size))}"


def format_percent(part: int, whole: int) -> str:
    """Format `part` as a signed percentage of `whole`, or as a factor if it is at least 1000%. Return an empty string if `whole` is 0."""
    if not whole:
        return ""
    value = 100 * part / whole
    return f"{value:+,.1f}%" if value < 1000 else f"{1 + value / 100:,.0f}x"


def shorten_list(items: Sequence[str], max_items: int, more: str = "and {} more") -> list[str]:
    """Return the first items, followed by a text with the number of remaining items."""
    return [*items[:max_items], *([more.format(len(items) - max_items)] if len(items) > max_items else [])]


def join_names(names: Sequence[str], max_names: int) -> str:
    """Join the first names into one text, such as `a, b and 3 more`."""
    more = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {more} more" if more > 0 else "")


def format_local_time(moment: str) -> str:
    """Format an RFC 3339 time in the local time zone. Return other text unchanged."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return moment


class Table(Struct, frozen=True):
    """Table with rows of cells, and optional column headings. A heading that starts with `>` marks a column of numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """Sentence to show below the table."""
    folded: bool = False

    def text(self, widths: Sequence[int], width: int | None = None) -> Iterator[str]:
        """Yield the table's lines. The first column is left-aligned. The others are right-aligned, and `widths` has their widths.

        `width` is the width of the table, by default 80 columns, or more if names need it and the terminal is wider.
        """
        headings = tuple(column.removeprefix(">") for column in self.columns)
        rows = (*([headings] if headings else []), *self.rows)
        if width is None:
            needed = max((len(escape_controls(row[0])) + _GAP + len(_format_numbers(row[1:], widths)) for row in rows), default=0)
            width = min(get_text_width(), max(WIDTH, needed))
        for name, *cells in rows:
            yield from _format_text_row(name, cells, widths, width)

    def markdown(self, max_rows: int, rest: str = "") -> str:
        """Format the first rows as GitHub-flavored Markdown. `rest` is added to the sentence about the remaining rows."""
        if not max_rows:
            return f"{self.title}: {len(self.rows)}"
        lines = [_format_markdown_row(column.removeprefix(">") for column in self.columns)]
        lines += [_format_markdown_row("--:" if column.startswith(">") else "---" for column in self.columns)]
        lines += [_format_markdown_row(row) for row in self.rows[:max_rows]]
        more = f"and {len(self.rows) - max_rows} more{rest}." if len(self.rows) > max_rows else ""
        body = "\n\n".join(filter(None, ("\n".join(lines), more, self.note)))
        if self.folded or len(self.rows) > _MAX_OPEN_ROWS:
            return f"<details><summary>{self.title} ({len(self.rows)})</summary>\n\n{body}\n\n</details>"
        return f"#### {self.title}\n\n{body}"

    def html(self, max_rows: int) -> str:
        """Format the first rows as HTML."""
        if not self.rows:
            return f"<h2>{self.title}</h2>\n<p>None.</p>"
        lines = "\n".join(_format_html_row("td", row) for row in self.rows[:max_rows])
        rest = f"<p>and {len(self.rows) - max_rows:,} more</p>" if len(self.rows) > max_rows else ""
        return f"<h2>{self.title}</h2>\n<table>{_format_html_row('th', self.columns)}\n{lines}</table>{rest}"


def format_code(text: str, max_length: int = _MAX_CODE) -> str:
    """Format untrusted text as Markdown code, so that the text cannot act as markup or mention a user. Shorten long text."""
    text = escape_controls(text)
    if len(text) > max_length:
        text = f"{text[: max_length // 2]}...{text[-max_length // 2 :]}"
    if not text:
        return "(empty)"
    if text.isascii() and text == text.strip() and not re.search(r"[`|\\]", text):
        return f"`{text}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda match: f'&#{ord(match[0])};', text)}</code>"


def _format_text_row(name: str, cells: Sequence[str], widths: Sequence[int], width: int) -> Iterator[str]:
    """Yield the lines of a row. A name that is too long is written on lines of its own."""
    numbers = _format_numbers(cells, widths)
    text, room = escape_controls(name), width - len(numbers)
    if len(text) > room - _GAP:
        indent = text[: len(text) - len(text.lstrip())]
        yield from wrap(text.strip(), indent, f"{indent}  ")
        text = ""
    if text or numbers:
        yield f"{text:<{room}}{numbers}".rstrip()


def _format_numbers(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)).lstrip()


def _format_markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_html_row(tag: str, cells: Iterable[str]) -> str:
    import html  # imported here because few tables are HTML

    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

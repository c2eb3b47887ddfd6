"""Summaries of results of the Python API, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from epbuild.core.errors import escape_controls
from epbuild.core.shown import format_columns

MAX_ROWS = 24
"""Maximum number of rows that a summary shows."""
_MAX_CELL = 160


class Summary(Struct, frozen=True):
    """One line about a result, and a table with its parts."""

    head: str
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()

    def text(self) -> str:
        """Return the head and the first rows as aligned lines. Long cells are shortened."""
        shown, rest = self._select_rows()
        lines = [[cell if len(cell) <= _MAX_CELL else f"{cell[:_MAX_CELL]}..." for cell in row] for row in shown]
        table = format_columns([self.columns, *lines]) if shown else []
        return "\n".join(filter(None, (escape_controls(self.head), *table, rest)))

    def html(self) -> str:
        """Return the head and the first rows as HTML."""
        shown, rest = self._select_rows()
        table = "".join(_format_row("td", row) for row in shown)
        table = f"<table><thead>{_format_row('th', self.columns)}</thead><tbody>{table}</tbody></table>" if shown else ""
        return f"<div><p>{_escape(self.head)}</p>{table}{f'<p>{rest}</p>' if rest else ''}</div>"

    def _select_rows(self) -> tuple[Sequence[tuple[str, ...]], str]:
        """Return the rows to show, and a text about the others."""
        more = len(self.rows) - MAX_ROWS
        return self.rows[:MAX_ROWS], f"and {more} more" if more > 0 else ""


class Summarized:
    """Base class of results with a summary. Python shells and notebooks show the summary."""

    __slots__ = ()

    def summarize(self) -> Summary:
        """Return the summary."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.summarize().text()

    def _repr_html_(self) -> str:
        return self.summarize().html()


def _format_row(tag: str, cells: Sequence[str]) -> str:
    start = f'<{tag} style="text-align: left">'  # notebooks align cells on the right by default
    return f"<tr>{''.join(f'{start}{_escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _escape(text: str) -> str:
    import html  # only notebooks need it

    return html.escape(escape_controls(text))

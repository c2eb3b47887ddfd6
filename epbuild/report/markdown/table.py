"""Tables as GitHub-flavoured Markdown, in ASCII.

All that comes from artifacts is shown as code, so that a name can neither become markup nor call anybody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from epbuild.core.errors import printable
from epbuild.core.values import dataclass

_OPEN_ROWS = 12
"""A longer list is folded."""
_LONGEST = 120


@dataclass(frozen=True)
class Table:
    """A list with a title; a column whose heading begins with `>` has numbers. `note` is a sentence below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = False


def code(text: str, longest: int = _LONGEST) -> str:
    """A text from outside as code, in which nothing is markup, in a table or not. Of a long one, the middle is left out."""
    text = printable(text)
    if len(text) > longest:
        text = f"{text[: longest // 2]}...{text[-longest // 2 :]}"
    if not text:
        return "(empty)"
    if text.isascii() and text == text.strip() and not re.search(r"[`|\\]", text):
        return f"`{text}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda match: f'&#{ord(match[0])};', text)}</code>"


def written(table: Table, most: int, rest: str = "") -> str:
    """A table as Markdown; of a long one, the first rows, and how many more there are, and where: `rest` ends that sentence."""
    if not most:
        return f"{table.title}: {len(table.rows)}"
    lines = [_cells(column.removeprefix(">") for column in table.columns)]
    lines += [_cells("--:" if column.startswith(">") else "---" for column in table.columns)]
    lines += [_cells(row) for row in table.rows[:most]]
    more = f"and {len(table.rows) - most} more{rest}." if len(table.rows) > most else ""
    body = "\n\n".join(filter(None, ("\n".join(lines), more, table.note)))
    if table.folded or len(table.rows) > _OPEN_ROWS:
        return f"<details><summary>{table.title} ({len(table.rows)})</summary>\n\n{body}\n\n</details>"
    return f"#### {table.title}\n\n{body}"


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

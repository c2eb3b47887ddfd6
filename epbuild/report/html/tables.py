"""Tables of a report as plain HTML, for readers whose browser runs no scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from epbuild.report.amounts import amount

_MOST_ROWS = 500
_COVERAGE = {
    "whole": "whole",
    "partial": "in part",
    "failed verify": "failed verify",
    "failed": "failed",
    "not built": "not built",
}


def static_tables(document: Mapping[str, Any]) -> str:
    """Coverage, failures, sizes, what sharing saves, and the digests of the models."""
    return "\n".join(
        (
            _table("Coverage", ("Model", "Target", "Coverage", "Size", "Outside, and why"), _coverage(document["coverage"])),
            _table("Failures", ("Step", "Error", "What to do"), _failures(document["steps"])),
            _table("Outputs", ("Output", "Targets", "Size"), _outputs(document["outputs"])),
            _table("Sharing", ("Group", "Target", "Alone", "Shared", "Saved"), _sharing(document["sharing"])),
            _table(
                "Models",
                ("Model", "Source", "SHA-256"),
                ((one["name"], one["source"], one["sha256"]) for one in document["models"]),
            ),
        )
    )


def _coverage(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str | None, ...]]:
    for row in rows:
        why = [f"{one['count']} {one['operator']}{': ' + one['reason'] if one['reason'] else ''}" for one in row["outside"]]
        words = _COVERAGE[row["outcome"]]
        yield (
            row["model"],
            row["target"],
            words,
            _size(row["size"]),
            "; ".join([*([row["reason"]] if row["reason"] else []), *why]) or None,
        )


def _failures(steps: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str | None, ...]]:
    for step in steps:
        for error in step["errors"]:
            yield step["id"], f"{error['message']} [{error['code']}]", error["hint"]


def _outputs(outputs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str | None, ...]]:
    return ((one["path"], ", ".join(one["targets"]), _size(one["size"])) for one in outputs)


def _sharing(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str | None, ...]]:
    return ((one["group"], one["target"], *(_size(one[key]) for key in ("alone", "shared", "saved"))) for one in rows)


def _size(size: int | None) -> str | None:
    return None if size is None else amount(size)


def _table(title: str, columns: Sequence[str], rows: Iterable[tuple[str | None, ...]]) -> str:
    lines = [_row("td", row) for row in rows]
    if not lines:
        return f"<h2>{title}</h2>\n<p>None.</p>"
    rest = f"<p>and {len(lines) - _MOST_ROWS:,} more</p>" if len(lines) > _MOST_ROWS else ""
    return f"<h2>{title}</h2>\n<table>{_row('th', columns)}\n{chr(10).join(lines[:_MOST_ROWS])}</table>{rest}"


def _row(tag: str, cells: Iterable[str | None]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' if cell else f'<{tag}></{tag}>' for cell in cells)}</tr>"

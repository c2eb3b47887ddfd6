"""Tables of a report in plain HTML, for browsers without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epbuild.report.formatting import format_size
from epbuild.report.table import Table

_MAX_ROWS = 500
_COVERAGE = {"partial": "in part"}


def static_tables(document: Mapping[str, Any]) -> str:
    """Return coverage, failures, sizes, savings by sharing, and digests of models."""
    coverage = (
        (row["model"], row["target"], _COVERAGE.get(row["outcome"], row["outcome"]), _size(row["size"]), _why(row))
        for row in document["coverage"]
    )
    failures = (
        (step["id"], f"{error['message']} [{error['code']}]", error["hint"] or "")
        for step in document["steps"]
        for error in step["errors"]
    )
    outputs = ((one["path"], ", ".join(one["targets"]), _size(one["size"])) for one in document["outputs"])
    sharing = (
        (one["group"], one["target"], *(_size(one[key]) for key in ("alone", "shared", "saved"))) for one in document["sharing"]
    )
    models = ((one["name"], one["source"], one["sha256"] or "") for one in document["models"])
    tables = (
        Table("Coverage", ("Model", "Target", "Coverage", "Size", "Outside, and why"), tuple(coverage)),
        Table("Failures", ("Step", "Error", "What to do"), tuple(failures)),
        Table("Outputs", ("Output", "Targets", "Size"), tuple(outputs)),
        Table("Sharing", ("Group", "Target", "Alone", "Shared", "Saved"), tuple(sharing)),
        Table("Models", ("Model", "Source", "SHA-256"), tuple(models)),
    )
    return "\n".join(table.html(_MAX_ROWS) for table in tables)


def _why(row: Mapping[str, Any]) -> str:
    reasons = [f"{one['count']} {one['operator']}{': ' + one['reason'] if one['reason'] else ''}" for one in row["outside"]]
    return "; ".join([*([row["reason"]] if row["reason"] else []), *reasons])


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)

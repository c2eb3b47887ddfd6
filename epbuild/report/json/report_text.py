"""Reports as JSON."""

from __future__ import annotations

from typing import Any

from epbuild.commands.reporting.values import Report
from epbuild.core.typed_json import to_json


def report_document(report: Report) -> dict[str, Any]:
    """`epbuild report --json`, and what a page has in it."""
    document: dict[str, Any] = to_json(report)
    return document

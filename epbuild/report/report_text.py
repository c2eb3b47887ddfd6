"""Reports as JSON, and in short for a terminal."""

from __future__ import annotations

from typing import Any

from epbuild.commands.report_values import Report
from epbuild.core.typed_json import to_json
from epbuild.core.units import counted
from epbuild.report.terminal import print_line


def report_document(report: Report) -> dict[str, Any]:
    """`epbuild report --json`, and what a page has in it."""
    document: dict[str, Any] = to_json(report)
    return document


def print_report(report: Report) -> None:
    print_line(f"{report.recipe.name}: {counted(len(report.steps), 'step')}")

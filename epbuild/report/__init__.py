"""Turns a build's events and findings into a terminal, plain lines, or JSON."""

from __future__ import annotations

import sys

from epbuild.report.documents import JsonLines, plan_document, print_json, problem_document
from epbuild.report.problems import tell_count, tell_problems
from epbuild.report.progress import LiveRows, PlainLines
from epbuild.report.text import print_inspection, print_line, print_plan

__all__ = [
    "plan_document",
    "print_inspection",
    "print_json",
    "print_line",
    "print_plan",
    "problem_document",
    "reporter",
    "tell_count",
    "tell_problems",
]


def reporter(*, json: bool) -> JsonLines | LiveRows | PlainLines:
    """Who listens to a build: JSON lines when asked for, live rows on a terminal, plain lines elsewhere."""
    if json:
        return JsonLines()
    return LiveRows() if sys.stdout.isatty() else PlainLines()

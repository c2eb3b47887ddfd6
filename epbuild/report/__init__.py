"""Turns a build's events and findings into a terminal, plain lines, or JSON."""

from __future__ import annotations

import sys

from epbuild.report.documents import JsonLines, plan_document, print_json, problem_document
from epbuild.report.explanation import explanation_document, print_explanations
from epbuild.report.problems import tell_count, tell_problems
from epbuild.report.progress import LiveRows, PlainLines
from epbuild.report.store import (
    checking,
    print_clean_sum,
    print_cleaned,
    print_stock,
    print_tidied,
    print_verification,
    stock_document,
    tidied_document,
    verification_document,
)
from epbuild.report.text import print_inspection, print_line, print_plan

__all__ = [
    "checking",
    "explanation_document",
    "plan_document",
    "print_clean_sum",
    "print_cleaned",
    "print_explanations",
    "print_inspection",
    "print_json",
    "print_line",
    "print_plan",
    "print_stock",
    "print_tidied",
    "print_verification",
    "problem_document",
    "reporter",
    "stock_document",
    "tell_count",
    "tell_problems",
    "tidied_document",
    "verification_document",
]


def reporter(*, json: bool) -> JsonLines | LiveRows | PlainLines:
    """Who listens to a build: JSON lines when asked for, live rows on a terminal, plain lines elsewhere."""
    if json:
        return JsonLines()
    return LiveRows() if sys.stdout.isatty() else PlainLines()

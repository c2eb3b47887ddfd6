"""Turns a build's events and findings into a terminal, plain lines, or JSON."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from epbuild.late import late
from epbuild.report.problems import is_screen, tell_count, tell_problems

if TYPE_CHECKING:
    from epbuild.report.coverage import CoverageList, CoverageProgress, coverage_document, print_coverage, print_coverage_markdown
    from epbuild.report.difference import comparison_document, print_comparison
    from epbuild.report.documents import JsonLines, plan_document, print_json, problem_document
    from epbuild.report.explanation import explanation_document, print_explanations
    from epbuild.report.findings import findings_document, print_findings
    from epbuild.report.inspection import print_inspection, print_inspections
    from epbuild.report.lock import lock_document, print_lock
    from epbuild.report.markdown import print_markdown
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
    from epbuild.report.summary import WithStepSummary
    from epbuild.report.text import print_line, print_plan

    L = TypeVar("L", JsonLines, LiveRows, PlainLines, CoverageProgress)

__all__ = [
    "CoverageList",
    "checking",
    "comparison_document",
    "coverage_document",
    "coverage_reporter",
    "explanation_document",
    "findings_document",
    "lock_document",
    "plan_document",
    "print_clean_sum",
    "print_cleaned",
    "print_comparison",
    "print_coverage",
    "print_coverage_markdown",
    "print_explanations",
    "print_findings",
    "print_inspection",
    "print_inspections",
    "print_json",
    "print_line",
    "print_lock",
    "print_markdown",
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

__getattr__ = late(
    __name__,
    {
        "coverage": ("CoverageList", "coverage_document", "print_coverage", "print_coverage_markdown"),
        "difference": (
            "comparison_document",
            "print_comparison",
        ),
        "documents": ("plan_document", "print_json", "problem_document"),
        "explanation": (
            "explanation_document",
            "print_explanations",
        ),
        "findings": (
            "findings_document",
            "print_findings",
        ),
        "inspection": (
            "print_inspection",
            "print_inspections",
        ),
        "lock": (
            "lock_document",
            "print_lock",
        ),
        "markdown": ("print_markdown",),
        "store": (
            "checking",
            "print_clean_sum",
            "print_cleaned",
            "print_stock",
            "print_tidied",
            "print_verification",
            "stock_document",
            "tidied_document",
            "verification_document",
        ),
        "text": ("print_line", "print_plan"),
    },
)


def reporter(*, json: bool) -> JsonLines | LiveRows | PlainLines | WithStepSummary:
    """Who listens to a build: JSON lines when asked for, live rows on a terminal, plain lines elsewhere.

    In a workflow of GitHub Actions, the summary of its step gets tables as well.
    """
    from epbuild.report.documents import JsonLines
    from epbuild.report.progress import LiveRows, PlainLines

    if json:
        return _with_summary(JsonLines())
    return _with_summary(LiveRows()) if is_screen(sys.stdout) else _with_summary(PlainLines())


def coverage_reporter(found: CoverageList) -> CoverageProgress | WithStepSummary:
    """Who listens to a build of which only the coverage is shown, which `found` has afterwards; and a workflow's summary, as above."""
    from epbuild.report.coverage import CoverageProgress

    return _with_summary(CoverageProgress(found))


def _with_summary(listener: L) -> L | WithStepSummary:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return listener
    from epbuild.report.summary import WithStepSummary

    return WithStepSummary(listener, Path(summary))

"""The choice of a build's `Progress`: JSON lines, live rows or plain lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from epbuild.report.terminal import is_screen

if TYPE_CHECKING:
    from epbuild.report.coverage import CoverageList, CoverageProgress
    from epbuild.report.documents import JsonLines
    from epbuild.report.progress import LiveRows, PlainLines
    from epbuild.report.summary import WithStepSummary

    L = TypeVar("L", JsonLines, LiveRows, PlainLines, CoverageProgress)


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

"""The choice of a build's `Progress`: JSON lines, live rows or plain lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.report.listener import Listener
from epbuild.report.terminal import is_screen

if TYPE_CHECKING:
    from epbuild.report.coverage import CoverageList


def reporter(*, json: bool) -> Listener:
    """Who listens to a build: JSON lines when asked for, live rows on a terminal, plain lines elsewhere.

    In a workflow of GitHub Actions, the summary of its step gets tables as well.
    """
    from epbuild.report.documents import JsonLines
    from epbuild.report.progress import LiveRows, PlainLines

    return _with_summary(JsonLines() if json else LiveRows() if is_screen(sys.stdout) else PlainLines())


def coverage_reporter(found: CoverageList) -> Listener:
    """Who listens to a build of which only the coverage is shown, which `found` has afterwards; and a workflow's summary, as above."""
    from epbuild.report.coverage import CoverageProgress

    return _with_summary(CoverageProgress(found))


def _with_summary(listener: Listener) -> Listener:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return listener
    from epbuild.report.summary import WithStepSummary

    return WithStepSummary(listener, Path(summary))

"""Choice of a build's listener: JSON lines, live rows or plain lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.report.listeners import Listener
from epbuild.report.terminal.screen import is_screen

if TYPE_CHECKING:
    from epbuild.report.terminal.coverage import CoverageList


def reporter(*, json: bool, summary: Path | None = None, all_warnings: bool = True) -> Listener:
    """Return the listener of a build: JSON lines when asked for, live rows on a terminal, plain lines elsewhere.

    Without `all_warnings`, rows and lines show three warnings of each code. Tables go to the file `summary`, or by default to the step
    summary of GitHub Actions.
    """
    if json:
        from epbuild.report.json.events import JsonLines

        return _with_summary(JsonLines(), summary)
    from epbuild.report.terminal.progress import LiveRows, PlainLines

    return _with_summary(
        LiveRows(all_warnings=all_warnings) if is_screen(sys.stdout) else PlainLines(all_warnings=all_warnings), summary
    )


def coverage_reporter(found: CoverageList) -> Listener:
    """Return the listener of a build that shows coverage only, which `found` collects. It writes the step summary as well."""
    from epbuild.report.terminal.coverage import CoverageProgress

    return _with_summary(CoverageProgress(found))


def _with_summary(listener: Listener, file: Path | None = None) -> Listener:
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    if file is None and not named:
        return listener
    from epbuild.report.ci.github_summary import WithStepSummary

    return WithStepSummary(listener, file or Path(str(named)))

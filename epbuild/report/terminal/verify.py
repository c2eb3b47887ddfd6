"""Findings of checks of artifacts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from epbuild.report.terminal.screen import WIDTH, has_colors, paint, print_line, wrap
from epbuild.verify.findings import Finding, Outcome

_OUTCOMES: tuple[Outcome, ...] = ("failed", "skipped", "passed")
_COLORS: dict[Outcome, str] = {"passed": "32", "failed": "31", "skipped": "33"}
_MAX_SUBJECTS = 3


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each check with its failures, skipped subjects with reasons, and measurements."""
    color = has_colors(sys.stdout)
    checks = list(dict.fromkeys(finding.check for finding in findings))
    width = max(map(len, checks), default=0)
    for check in checks:
        found = [finding for finding in findings if finding.check == check]
        counts = Counter(finding.outcome for finding in found)
        shown = ", ".join(
            paint(f"{counts[outcome]} {outcome}", _COLORS[outcome], color) for outcome in _OUTCOMES if counts[outcome]
        )
        print_line(f"{check:<{width}}  {shown}")
        for finding in found:
            if finding.outcome == "failed":
                _print_subjects((finding.subject,), _text(finding))
        # A check that passed with a message was a measurement, which belongs to the result.
        alike: dict[str, list[str]] = {}
        for finding in found:
            if finding.outcome == "skipped" or (finding.outcome == "passed" and finding.message):
                alike.setdefault(_text(finding), []).append(finding.subject)
        for reason, subjects in alike.items():
            _print_subjects(subjects, reason)
    counts = Counter(finding.outcome for finding in findings)
    print_line(", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(_OUTCOMES) if counts[outcome]))


def _text(finding: Finding) -> str:
    code = f" [{finding.code}]" if finding.code else ""
    return f"{finding.message}{f' {finding.hint}' if finding.hint else ''}{code}"


def _print_subjects(subjects: Sequence[str], text: str) -> None:
    named = list(dict.fromkeys(subjects))
    more = len(named) - _MAX_SUBJECTS
    listed = ", ".join(named[:_MAX_SUBJECTS]) + (f" and {more} more" if more > 0 else "")
    # Break between words only, so that names can be searched for.
    for number, line in enumerate(wrap(f"{listed}: {text}", width=WIDTH - 4, long_words=False)):
        print_line(f"{'  ' if number == 0 else '    '}{line}")

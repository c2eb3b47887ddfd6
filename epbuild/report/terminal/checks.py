"""Terminal output for checks of artifacts and of this machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epbuild.core.redact import conceal_text, redact
from epbuild.core.units import format_count
from epbuild.report.formatting import join_names
from epbuild.report.terminal.screen import BOLD, WIDTH, has_colors, paint, print_line, print_lines, wrap
from epbuild.verify.findings import Finding, Outcome

if TYPE_CHECKING:  # Import for types only: `verify` does not need doctor's checks.
    from epbuild.commands.doctor.doctor import Diagnoses
    from epbuild.commands.doctor.health import HealthCheck, HealthState

_OUTCOMES: tuple[Outcome, ...] = ("failed", "skipped", "passed")
_OUTCOME_COLORS: dict[Outcome, str] = {"passed": "32", "failed": "31", "skipped": "33"}
_MAX_SUBJECTS = 3
_STATE_COLORS: dict[HealthState, str] = {"ok": "32", "note": "36", "warning": "33", "error": "31"}
_STATE, _TOPIC = 9, 14


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each check, with its failures, the reasons for skipped subjects, and its measurements."""
    color = has_colors(sys.stdout)
    checks = list(dict.fromkeys(finding.check for finding in findings))
    width = max(map(len, checks), default=0)
    for check in checks:
        found = [finding for finding in findings if finding.check == check]
        counts = Counter(finding.outcome for finding in found)
        shown = ", ".join(
            paint(f"{counts[outcome]} {outcome}", _OUTCOME_COLORS[outcome], color) for outcome in _OUTCOMES if counts[outcome]
        )
        print_line(f"{check:<{width}}  {shown}")
        for finding in found:
            if finding.outcome == "failed":
                _print_subjects((finding.subject,), _format_finding(finding))
        # The message of a passed check is a measurement, which is part of the result.
        alike: dict[str, list[str]] = {}
        for finding in found:
            if finding.outcome == "skipped" or (finding.outcome == "passed" and finding.message):
                alike.setdefault(_format_finding(finding), []).append(finding.subject)
        for reason, subjects in alike.items():
            _print_subjects(subjects, reason)
    counts = Counter(finding.outcome for finding in findings)
    print_line(", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(_OUTCOMES) if counts[outcome]))


def _format_finding(finding: Finding) -> str:
    code = f" [{finding.code}]" if finding.code else ""
    return f"{finding.message}{f' {finding.hint}' if finding.hint else ''}{code}"


def _print_subjects(subjects: Sequence[str], text: str) -> None:
    listed = join_names(list(dict.fromkeys(subjects)), _MAX_SUBJECTS)
    # Break only between words, so that users can search for names.
    for number, line in enumerate(wrap(f"{listed}: {text}", width=WIDTH - 4, long_words=False)):
        print_line(f"{'  ' if number == 0 else '    '}{line}")


class HealthPrinter:
    """Printer that shows each check with its hint as it finishes, and finally the number of errors and warnings."""

    def __init__(self, title: str) -> None:
        self._color = has_colors(sys.stdout)
        self._before: tuple[str, str] | None = None
        print_line(paint(title, BOLD, self._color))

    def print_check(self, check: HealthCheck) -> None:
        subject = check.topic if check.topic != "ep" else ""
        shown = "" if (subject, check.name) == self._before else subject
        for line in _format_check(check, shown, color=self._color):
            print_line(line)
        sys.stdout.flush()
        self._before = (subject, check.name)

    def print_sum(self, found: Diagnoses) -> None:
        counts = Counter(check.state for check in found.checks)
        shown = [format_count(counts[state], state) for state in ("error", "warning") if counts[state]]
        words = "Builds can run." if found.is_healthy else "Builds cannot run until the errors are fixed."
        print_lines(["", f"{words} {' and '.join(shown).capitalize()}." if shown else words])


def _format_check(check: HealthCheck, subject: str, *, color: bool) -> list[str]:
    margin = " " * (_STATE + _TOPIC)
    name = f"{check.name}: " if check.name and check.topic == "toolchain" else ""
    first, *more = wrap(f"{name}{redact(conceal_text(check.text))}", width=WIDTH - len(margin)) or [""]
    state = paint(f"{check.state:<{_STATE}}", _STATE_COLORS[check.state], color)
    lines = [f"{state}{subject:<{_TOPIC}}{first}".rstrip(), *(f"{margin}{line}" for line in more)]
    if check.hint is not None and check.state != "ok":
        code = f" [{check.code}]" if check.code else ""
        hint = wrap(f"{check.hint}{code}", width=WIDTH - len(margin) - 2)
        lines += [f"{margin}{'> ' if number == 0 else '  '}{line}" for number, line in enumerate(hint)]
    return lines

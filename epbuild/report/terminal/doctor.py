"""Checks of this machine, printed as they finish."""

from __future__ import annotations

import sys
from collections import Counter

from epbuild.commands.doctor.doctor import Diagnoses
from epbuild.commands.doctor.health import HealthCheck, HealthState
from epbuild.core.redact import concealed, redacted
from epbuild.core.units import counted
from epbuild.report.terminal.screen import BOLD, WIDTH, has_colors, paint, print_line, print_lines, wrap

_COLORS: dict[HealthState, str] = {"ok": "32", "note": "36", "warning": "33", "error": "31"}
_STATE, _TOPIC = 9, 14


class HealthPrinter:
    """Printer of each check as it finishes, with its hint, and finally of the number of errors and warnings."""

    def __init__(self, title: str) -> None:
        self._color = has_colors(sys.stdout)
        self._before: tuple[str, str] | None = None
        print_line(paint(title, BOLD, self._color))

    def print_check(self, check: HealthCheck) -> None:
        subject = check.topic if check.topic != "ep" else ""
        shown = "" if (subject, check.name) == self._before else subject
        for line in _lines(check, shown, color=self._color):
            print_line(line)
        sys.stdout.flush()
        self._before = (subject, check.name)

    def print_sum(self, found: Diagnoses) -> None:
        counts = Counter(check.state for check in found.checks)
        shown = [counted(counts[state], state) for state in ("error", "warning") if counts[state]]
        words = "Builds can work." if found.is_healthy else "Builds cannot work before the errors are mended."
        print_lines(["", f"{words} {' and '.join(shown).capitalize()}." if shown else words])


def _lines(check: HealthCheck, subject: str, *, color: bool) -> list[str]:
    margin = " " * (_STATE + _TOPIC)
    name = f"{check.name}: " if check.name and check.topic == "toolchain" else ""
    first, *more = wrap(f"{name}{redacted(concealed(check.text))}", width=WIDTH - len(margin)) or [""]
    state = paint(f"{check.state:<{_STATE}}", _COLORS[check.state], color)
    lines = [f"{state}{subject:<{_TOPIC}}{first}".rstrip(), *(f"{margin}{line}" for line in more)]
    if check.hint is not None and check.state != "ok":
        code = f" [{check.code}]" if check.code else ""
        hint = wrap(f"{check.hint}{code}", width=WIDTH - len(margin) - 2)
        lines += [f"{margin}{'> ' if number == 0 else '  '}{line}" for number, line in enumerate(hint)]
    return lines

"""Terminal output for checks of artifacts and of this machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.core.redact import conceal_text, redact
from epbuild.core.shown import format_columns
from epbuild.core.units import format_count
from epbuild.report.formatting import join_names
from epbuild.report.terminal.screen import BOLD, DIM, get_text_width, has_colors, paint, print_line, print_lines, wrap
from epbuild.verify.findings import OUTCOMES, Finding, Outcome, format_sentence

if TYPE_CHECKING:  # Import for types only: `verify` does not need doctor's checks.
    from epbuild.catalog.entries import EpEntry
    from epbuild.commands.bisect.values import Bisection, TensorRow
    from epbuild.commands.doctor.devices import EpHealth
    from epbuild.commands.doctor.doctor import Diagnoses
    from epbuild.commands.doctor.health import HealthCheck, HealthState

_OUTCOME_COLORS: dict[Outcome, str] = {"passed": "32", "failed": "31", "skipped": "33"}
_MAX_SUBJECTS = 3
_MAX_PART = 20
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
            paint(f"{counts[outcome]} {outcome}", _OUTCOME_COLORS[outcome], color) for outcome in OUTCOMES if counts[outcome]
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
    print_line(", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(OUTCOMES) if counts[outcome]))


def _format_finding(finding: Finding) -> str:
    code = f" [{finding.code}]" if finding.code else ""
    return f"{finding.message}{f' {finding.hint}' if finding.hint else ''}{code}"


def _print_subjects(subjects: Sequence[str], text: str) -> None:
    listed = join_names(list(dict.fromkeys(subjects)), _MAX_SUBJECTS)
    # Break only between words, so that users can search for names.
    for number, line in enumerate(wrap(f"{listed}: {text}", width=get_text_width() - 4)):
        print_line(f"{'  ' if number == 0 else '    '}{line}")


class HealthPrinter:
    """Printer that shows each check with its hint as it finishes, and finally the number of errors and warnings."""

    def __init__(self) -> None:
        self._color = has_colors(sys.stdout)
        self._before: tuple[str, str] | None = None

    def print_title(self, title: str) -> None:
        print_line(paint(title, BOLD, self._color))

    def print_check(self, check: HealthCheck) -> None:
        subject = check.topic if check.topic != "ep" else ""
        shown = "" if (subject, check.name) == self._before else subject
        print_lines(_format_check(check, shown, color=self._color))
        sys.stdout.flush()
        self._before = (subject, check.name)

    def print_sum(self, found: Diagnoses) -> None:
        counts = Counter(check.state for check in found.checks)
        shown = [format_count(counts[state], state) for state in ("error", "warning") if counts[state]]
        words = "Builds can run." if found.is_healthy else "Builds cannot run until the errors are fixed."
        print_lines(["", f"{words} {' and '.join(shown).capitalize()}." if shown else words])


def print_devices(found: Diagnoses) -> None:
    """Print a table of the EPs of all toolchains with their devices, then the checks that did not pass."""
    rows = [_format_ep(ep, toolchain.onnxruntime) for toolchain in found.toolchains for ep in toolchain.eps]
    color = has_colors(sys.stdout)
    if rows:
        head, *lines = format_columns([("EP", "ONNX Runtime", "device", "compiles for", "loads"), *rows])
        print_lines([paint(head, BOLD, color), *lines, ""])
    _print_callbacks([ep for toolchain in found.toolchains for ep in toolchain.eps])
    printer = HealthPrinter()
    for check in found.checks:
        if check.state != "ok":
            printer.print_check(check)
    if not found.is_healthy:
        print_line("Builds cannot run until the errors are fixed.")


def _print_callbacks(eps: Sequence[EpHealth]) -> None:
    """Print which EPs can read encrypted context binaries through a callback, if this is known."""
    for answer, text in ((True, "are read through a callback by"), (False, "are not read by")):
        names = dict.fromkeys(ep.ep for ep in eps if ep.read_callback is answer)
        if names:
            print_lines(wrap(f"Encrypted context binaries {text} {', '.join(names)}."))


def _format_ep(ep: EpHealth, onnxruntime: str | None) -> tuple[str, ...]:
    """Return the cells of an EP's row in the table of `devices`."""
    devices = ", ".join(dict.fromkeys(device.type for device in ep.devices)) or "none"
    compiles, loads = "not tested", "not tested"
    if ep.attempt is not None:
        compiles = "fails" if ep.attempt.seconds is None else f"{ep.attempt.target} ({ep.attempt.seconds:.1f} s)"
        loads = "yes" if ep.attempt.opened else "no"
    return ep.ep, onnxruntime or "unknown", f"{devices}{' (emulated)' if ep.emulated else ''}", compiles, loads


def print_known_names(ep: str, entries: Sequence[EpEntry]) -> None:
    """Print the known values of each option of an EP that names hardware, such as SoCs, with their product names."""
    color = has_colors(sys.stdout)
    tables = {option: table for entry in entries for option, table in entry.names.items()}
    for option, table in tables.items():
        facts = [name for name in table.rows[0].facts if all(name in row.facts for row in table.rows)]
        common_first = sorted(table.rows, key=lambda row: not row.products)
        rows = [(row.name, *(row.facts[name] for name in facts), ", ".join(row.products)) for row in common_first]
        print_line(paint(f"{option} of {ep}: {format_count(len(rows), 'known value')}", BOLD, color))
        head, *lines = format_columns([("name", *facts, "product"), *rows])
        print_lines([paint(head, DIM, color), *lines])
    if not tables:
        devices = ", ".join(dict.fromkeys(device for entry in entries for device in entry.devices)) or "unknown"
        print_lines(wrap(f"{ep} has no option that names hardware such as a SoC. Types of devices: {devices}."))


def _format_check(check: HealthCheck, subject: str, *, color: bool) -> list[str]:
    margin = " " * (_STATE + _TOPIC)
    name = f"{check.name}: " if check.name and check.topic == "toolchain" else ""
    room = get_text_width() - len(margin)
    first, *more = wrap(f"{name}{redact(conceal_text(check.text))}", width=room) or [""]
    state = paint(f"{check.state:<{_STATE}}", _STATE_COLORS[check.state], color)
    lines = [f"{state}{subject:<{_TOPIC}}{first}".rstrip(), *(f"{margin}{line}" for line in more)]
    if check.hint is not None and check.state != "ok":
        code = f" [{check.code}]" if check.code else ""
        hint = wrap(f"{check.hint}{code}", width=room - 2)
        lines += [f"{margin}{'> ' if number == 0 else '  '}{line}" for number, line in enumerate(hint)]
    return lines


def print_bisection(found: Bisection) -> None:
    """Print the faulty part of a model, the values around it, the reason and the advice."""
    color = has_colors(sys.stdout)
    for line in wrap(f"{found.model}: {found.message} ({format_count(found.compiles, 'compile')}).", others="  "):
        print_line(paint(line, BOLD, color) if found.fault else line)
    if found.part:
        rows = [("node", "operator"), *((row.node, row.operator) for row in found.part[:_MAX_PART])]
        _print_table(rows, len(found.part) - _MAX_PART)
    if found.tensors:
        _print_table([("value", "operator", "CPU EP", "EP", "snr_db", ""), *map(_format_tensor, found.tensors)])
    if found.part:
        print_line("")
    texts = [format_sentence(found.reason)] if found.reason else []
    if found.files:
        folder, names = Path(found.files[0]).parent, (Path(file).name for file in found.files)
        texts.append(f"To reproduce the fault, use {', '.join(names)} in {folder.as_posix()}.")
    for text in (*texts, *found.advice):
        print_lines(wrap(text, others="  "))


def _print_table(rows: Sequence[tuple[str, ...]], more: int = 0) -> None:
    """Print rows as an indented table. The first cell of a row may lose its beginning, because names of nodes differ at their end."""
    room = get_text_width() - 2 - sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    shown = [(name if len(name) <= room else f"...{name[3 - room :]}", *cells) for name, *cells in rows]
    print_lines(["", *(f"  {line}" for line in format_columns(shown)), *([f"  and {more} more"] if more > 0 else [])])


def _format_tensor(row: TensorRow) -> tuple[str, ...]:
    got = "" if row.got is None else f"{row.got:.5g}"
    return (
        row.tensor,
        row.operator,
        f"{row.expected:.5g}",
        got,
        "" if row.snr_db is None else f"{row.snr_db:.1f}",
        "wrong" if row.bad else "",
    )

"""Failures of a build, grouped by reason.

Failed: 3 steps, for 2 reasons
Unable to compile any nodes. [EPB401]
  All inputs have fixed sizes, so other sizes do not help.
  compile:bad/*/bad0 for 2 targets: npu-SC8380XP, npu-SM8750
The worker crashed (SIGSEGV) while compiling 'good' for npu. [EPB402]
  compile:good/npu/good
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from epbuild.commands.reporting.failures import ReportedFailure
from epbuild.core.errors import escape_controls
from epbuild.core.units import format_count
from epbuild.report.formatting import join_names
from epbuild.report.terminal.screen import BOLD, DIM, has_colors, paint, wrap

_MAX_LINES = 20
_MAX_NAMES = 6
_INDENT = "  "


def format_failures(failures: Sequence[ReportedFailure]) -> Iterator[str]:
    """Yield a heading, and each reason with its hint and its steps. Allowed failures come first."""
    for allowed in (True, False):
        yield from _format_section(
            "Failed (allowed)" if allowed else "Failed", [one for one in failures if one.allowed is allowed]
        )


def _format_section(heading: str, failures: Sequence[ReportedFailure]) -> Iterator[str]:
    if not failures:
        return
    color = has_colors(sys.stdout)
    steps = {step for failure in failures for step in failure.steps}
    yield f"{paint(heading, BOLD, color)}: {format_count(len(steps), 'step')}, for {format_count(len(failures), 'reason')}"
    for failure in failures:
        yield from wrap(f"{failure.reason}. [{failure.code}]", others=_INDENT)
        hint = wrap(failure.hint, _INDENT, _INDENT) if failure.hint else ()
        yield from (paint(line, DIM, color) for line in hint)
        lines = list(group_steps(failure.steps))
        rest = len(lines) - _MAX_LINES
        for line in lines[: _MAX_LINES + (rest == 1)]:
            yield from wrap(line, _INDENT, _INDENT * 2)
        if rest > 1:
            yield f"  and {rest} more lines of steps"
    yield ""


def group_steps(steps: Sequence[str]) -> Iterator[str]:
    """Yield each step, or one text for all steps that differ only in the target, or in the model that they prepare."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for step in steps:
        kind, _, rest = step.partition(":")
        first, *others = rest.split("/", 2)
        if kind == "prepare":
            common, differing = f"prepare:*/{'/'.join(others)}", first
        elif others and (kind != "emit" or len(others) == 2):
            common, differing = "/".join([f"{kind}:{first}", "*", *others[1:]]), others[0]
        else:  # an output of several groups or targets
            common, differing = step, step
        groups.setdefault((common, "model" if kind == "prepare" else "target"), {})[differing] = step
    for (common, noun), found in groups.items():
        if len(found) == 1:
            yield escape_controls(*found.values())
        else:
            yield escape_controls(f"{common} for {format_count(len(found), noun)}: {join_names([*found], _MAX_NAMES)}")

"""Table of a plan."""

from __future__ import annotations

import sys
from collections import Counter

from epbuild.commands.graph import REMOTE, shown_state
from epbuild.core.shown import shown_path
from epbuild.report.formatting import shorten_list
from epbuild.report.terminal.screen import DIM, has_colors, paint, print_line, print_lines
from epbuild.survey.snapshot import nothing_to_do
from epbuild.survey.status import Survey

_COLORS = {"current": DIM, "restorable": "36", "out of date": "33", "new": "32", "failed": "31"}
_ORPHAN = "orphan"
_ON_DEVICE = "runs on a real device"
_MAX_REASONS = 6


def print_plan(found: Survey, *, only_todo: bool = False) -> None:
    """Print the steps with their states, each with the reasons for running it."""
    # A plan may have tens of thousands of lines, for which rich is too slow.
    everything = found.steps()
    steps = [status for status in everything if not only_todo or status.state != "current"]
    if not steps and not found.orphans:
        print_line(f"{nothing_to_do(len(everything))}.")
        return
    color, states = has_colors(sys.stdout), {shown_state(status): status.state for status in steps}
    width = max([*map(len, states), *(len(_ORPHAN) for _ in found.orphans[:1])])
    beginnings = {shown: paint(f"{shown:<{width}}", _COLORS[state], color) for shown, state in states.items()}
    lines = []
    for status in steps:
        lines.append(f"{beginnings[shown_state(status)]}  {status.step.id}")
        if status.state != "current" or status.reasons:
            device = [_ON_DEVICE] if status.state != "current" and status.on_real_device else []
            notes = [*shorten_list(status.reasons, _MAX_REASONS), *device]
            lines += [paint(f"{'':<{width}}    {note}", DIM, color) for note in notes]
    for orphan in found.orphans:
        lines.append(f"{paint(f'{_ORPHAN:<{width}}', '33', color)}  {shown_path(orphan.directory)}")
        lines.append(paint(f"{'':<{width}}    the recipe no longer asks for it; a build removes it", DIM, color))
    print_lines(lines)
    counts = Counter(map(shown_state, everything))
    known = [shown for state in _COLORS for shown in (state, f"{state}{REMOTE}") if counts[shown]]
    print_line(f"{len(everything)} steps: " + ", ".join(f"{counts[shown]} {shown}" for shown in known))

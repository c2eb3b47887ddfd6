"""Terminal output for plans, explanations of steps, and work for a cluster."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epbuild.commands.graph import REMOTE, format_state
from epbuild.commands.plan import Explanation
from epbuild.core.differences import format_value
from epbuild.core.errors import escape_controls
from epbuild.core.shown import format_path
from epbuild.core.units import format_count, format_estimate
from epbuild.recipe.model import Defaults
from epbuild.report.formatting import format_disk, join_names, shorten_list
from epbuild.report.terminal.screen import BOLD, DIM, has_colors, paint, print_line, print_lines, wrap
from epbuild.survey.snapshot import format_nothing_to_do
from epbuild.survey.status import Survey

if TYPE_CHECKING:
    from epbuild.commands.workload import Workload


_COLORS = {"current": DIM, "restorable": "36", "out of date": "33", "new": "32", "failed": "31"}
_ORPHAN = "orphan"
_ON_DEVICE = "runs on a real device"
_MAX_REASONS = 6
_MAX_NAMED = 3


def print_plan(found: Survey, *, every_step: bool = False) -> None:
    """Print the steps with their states and the reasons to run them, and the number of steps in each state.

    Current steps are only counted, unless `every_step` is true.
    """
    # A plan can have tens of thousands of lines. Rich is too slow for them.
    everything = found.steps()
    steps = [status for status in everything if every_step or status.state != "current"]
    if not steps and not found.orphans:
        print_line(f"{format_nothing_to_do(len(everything))}.")
        return
    color, states = has_colors(sys.stdout), {format_state(status): status.state for status in steps}
    width = max([*map(len, states), *(len(_ORPHAN) for _ in found.orphans[:1])])
    beginnings = {shown: paint(f"{shown:<{width}}", _COLORS[state], color) for shown, state in states.items()}
    lines = []
    for status in steps:
        lines.append(f"{beginnings[format_state(status)]}  {status.step.id}")
        if status.state != "current" or status.reasons:
            device = [_ON_DEVICE] if status.state != "current" and status.on_real_device else []
            notes = [*shorten_list(status.reasons, _MAX_REASONS), *device]
            lines += [paint(f"{'':<{width}}    {note}", DIM, color) for note in notes]
    for orphan in found.orphans:
        lines.append(f"{paint(f'{_ORPHAN:<{width}}', '33', color)}  {format_path(orphan.directory)}")
        lines.append(paint(f"{'':<{width}}    the recipe no longer defines it; the next build removes it", DIM, color))
    print_lines(lines)
    counts = Counter(map(format_state, everything))
    known = [shown for state in _COLORS for shown in (state, f"{state}{REMOTE}") if counts[shown]]
    print_line(f"{len(everything)} steps: " + ", ".join(f"{counts[shown]} {shown}" for shown in known))
    print_lines(list(map(format_disk, found.disk)))


def print_defaults(defaults: Defaults) -> None:
    """Print the defaults that a recipe uses, if any."""
    parts = [f"name {defaults.name}"] if defaults.name is not None else []
    parts += [f"toolchain {name} ({', '.join(packages)})" for name, packages in defaults.toolchains.items()]
    of = "each of " if len(defaults.groups) > 1 else ""
    parts += [f"a group for {of}{join_names(defaults.groups, _MAX_NAMED)}"] if defaults.groups else []
    parts += [f"outputs in {defaults.output}".replace("${", "<").replace("}", ">")] if defaults.output is not None else []
    title = "defaults: "
    margin = " " * len(title)
    lines = [line for part in parts for line in wrap(part, margin, f"{margin}  ")]
    if lines:
        color = has_colors(sys.stdout)
        print_lines([paint(line, DIM, color) for line in [lines[0].replace(margin, title, 1), *lines[1:]]])


def print_explanations(found: Sequence[Explanation]) -> None:
    """Print the explanations, with an empty line between them."""
    color = has_colors(sys.stdout)
    for number, explanation in enumerate(found):
        head, *rest = _format_explanation(explanation, "")
        print_lines([*([""] if number else []), paint(head, BOLD, color), *rest])


def _format_explanation(explanation: Explanation, margin: str) -> Iterator[str]:
    yield f"{margin}{explanation.state}{REMOTE if explanation.remote else ''}  {explanation.step.id}"
    inner = f"{margin}  "
    yield from wrap(_describe_history(explanation), inner, inner)
    if explanation.state != "current" and explanation.step.id != explanation.step.action:
        how = "run together with" if explanation.step.kind == "merge" else "compiled in the same process as the rest of"
        yield from wrap(f"It is {how} {explanation.step.action}.", inner, inner)
    waits = {f"needs {cause.step.id}" for cause in explanation.causes}
    # A finished step has no reasons, but its changes are the reasons why later steps have to run.
    for reason in explanation.reasons or map(str, explanation.changes):
        if reason not in waits:
            yield from wrap(reason, f"{inner}- ", f"{inner}  ")
    if explanation.causes:
        yield f"{inner}It depends on:" if waits & set(explanation.reasons) else f"{inner}Its inputs:"
        for cause in explanation.causes:
            yield from _format_explanation(cause, f"{inner}  ")


def _describe_history(explanation: Explanation) -> str:
    """Describe when the step was last built, with which key, and its current state."""
    emits = explanation.step.kind in ("merge", "emit")
    done = "emitted" if explanation.step.kind == "emit" else "built"
    key = "" if explanation.key is None else format_value(explanation.key)
    place = "the remote cache" if explanation.remote else "the store"
    if explanation.built is None:
        text = f"It has never been {done} here"
        if not emits and explanation.state == "new" and key:
            return f"{text}, and the store has no result for its key, {key}."
        return f"{text}; {place} has a result for its key, {key}." if explanation.state == "restorable" else f"{text}."
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(explanation.built))
    text = f"Last {done} {when}, with the key {format_value(explanation.previous_key)}"
    if explanation.state == "current":
        if explanation.changes:
            return f"{text}; the emitted files come from an earlier result."
        return f"{text}; " + ("its files are in place." if emits else "none of its inputs has changed since then.")
    if key and explanation.key != explanation.previous_key:
        text += f"; its key is now {key}"
    if explanation.state != "restorable" or explanation.causes:
        return f"{text}."
    return f"{text}. " + (
        "The store has everything needed to restore its files."
        if emits
        else f"{place[0].upper()}{place[1:]} has a result for this key."
    )


def print_workloads(loads: Sequence[Workload]) -> None:
    """Print the missing work, the machines that can do the work, and the estimated time."""
    for load in loads:
        device = ", on a real device" if load.real_device else ""
        print_line(f"{load.platform}  {', '.join(load.eps) or 'preparations'}{device}")
        print_line(f"    {format_count(load.actions, 'action')}, {_format_time(load)}")
        print_lines(f"    {line}" for line in _list_notes(load))
    if not loads:
        print_line("There is no work to do.")


def _list_notes(load: Workload) -> Iterator[str]:
    """Yield notes about machines that have never run this kind of work or cannot run it."""
    if load.untried and load.eps:
        yield f"untried machines: {join_names(load.untried, _MAX_NAMED)}"
    for other in load.others[:_MAX_NAMED]:
        yield escape_controls(f"{other.machine} cannot run it: {other.why}")
    if len(load.others) > _MAX_NAMED:
        yield f"{len(load.others) - _MAX_NAMED} more machines cannot run it"


def _format_time(load: Workload) -> str:
    work = f"{format_estimate(load.seconds)} of work"
    if load.likely_seconds is None:
        return f"{work}: no machine in the cluster can run it"
    return (
        f"{work}: {format_estimate(load.likely_seconds)} on {format_count(len(load.machines), 'machine')}, {load.slots} at once"
    )

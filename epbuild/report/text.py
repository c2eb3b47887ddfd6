"""Words for people: the plan and an inspection as tables that fit 80 columns."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epbuild.build import StepStatus, Survey, shown_path
from epbuild.report.problems import coloured
from epbuild.snapshot import nothing_to_do

if TYPE_CHECKING:
    from rich.console import Console

_DIM = "2"
_COLOURS = {"current": _DIM, "restorable": "36", "out of date": "33", "new": "32"}
_ORPHAN = "orphan"
_MOST_REASONS = 6


def print_line(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(f"{text}\n")


def print_plan(found: Survey, *, only_todo: bool = False) -> None:
    """The steps with their states, and under each why it would run."""
    # Plain writes: a plan may have tens of thousands of lines, and rich takes a quarter of a millisecond for each.
    steps = [status for status in found.steps() if not only_todo or status.state != "current"]
    if not steps and not found.orphans:
        print_line(f"{nothing_to_do(len(found.plan.steps))}.")
        return
    colour = coloured(sys.stdout)
    width = max([*(len(status.state) for status in steps), *(len(_ORPHAN) for _ in found.orphans[:1])])
    for status in steps:
        state = _painted(f"{status.state:<{width}}", _COLOURS[status.state], colour)
        lines = [f"{state}  {status.step.id}"]
        lines += [_painted(f"{'':<{width}}    {reason}", _DIM, colour) for reason in _reasons(status)]
        sys.stdout.write("\n".join(lines) + "\n")
    for orphan in found.orphans:
        sys.stdout.write(f"{_painted(f'{_ORPHAN:<{width}}', '33', colour)}  {shown_path(orphan.directory)}\n")
        sys.stdout.write(_painted(f"{'':<{width}}    the recipe no longer asks for it; a build removes it", _DIM, colour) + "\n")
    counts = Counter[str](status.state for status in found.steps())
    print_line(f"{len(found.plan.steps)} steps: " + ", ".join(f"{counts[state]} {state}" for state in _COLOURS if counts[state]))


def _painted(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def print_inspection(found: Mapping[str, Any]) -> None:
    """What `inspect_model` found, for people."""
    from rich.filesize import decimal

    console = wide_console()

    def line(label: str, text: str, style: str | None = None) -> None:
        # One space: with it, a SHA-256 just fits into 80 columns.
        console.print(f" {label:<15}", end="", markup=False, highlight=False)
        console.print(text, markup=False, highlight=False, style=style)

    console.print(f"{found['file']} ({decimal(found['size'])})", markup=False, highlight=False, style="bold")
    for kind in ("inputs", "outputs"):
        for number, value in enumerate(found[kind]):
            shape = "?" if value["shape"] is None else ", ".join("?" if size is None else str(size) for size in value["shape"])
            line(kind if number == 0 else "", f"{value['name']}  {value['type']}[{shape}]")
    for node in found["ep_context_nodes"]:
        console.print(f"\nEPContext {node['name']}", markup=False, highlight=False, style="bold")
        line("source", f"{node['source']}" + (f", SDK {node['ep_sdk_version']}" if node["ep_sdk_version"] else ""))
        if node["target"]:
            line("compiled for", node["target"], "green")
        if not node["main_context"]:
            line("context", "in the node with main_context=1")
        elif node["embed_mode"]:
            line("context", f"embedded, {decimal(node['size'] or 0)}")
        elif node["problem"]:
            line("context", node["reference"] or "none")
            line("problem", node["problem"], "red")
        else:
            line("context", f"{node['reference']} ({decimal(node['size'])})")
            line("sha256", node["sha256"])
    if found["ep_context_nodes"]:
        console.print()
    others = found["other_operators"]
    count = sum(others.values())
    if not found["ep_context_nodes"]:
        line("not compiled", f"{count} nodes, none of them an EPContext node", "yellow")
    elif count:
        listed = ", ".join(f"{name} x {number}" for name, number in others.items())
        line("outside the EP", f"{count} nodes: {listed}", "yellow")
    else:
        line("outside the EP", "nothing", "green")
    for ep, text in found["compatibility"].items():
        line("compatibility", f"{ep}: {text}")
    if found["external_data"]:
        line("external data", ", ".join(found["external_data"]))


def wide_console() -> Console:
    """A console on standard output that wraps where the terminal ends, and nowhere else."""
    from rich.console import Console

    return Console(file=sys.stdout, soft_wrap=True)


def _reasons(status: StepStatus) -> list[str]:
    left = len(status.reasons) - _MOST_REASONS
    return [*status.reasons[:_MOST_REASONS], *([f"and {left} more"] if left > 0 else [])]

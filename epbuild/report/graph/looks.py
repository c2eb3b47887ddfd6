"""Signs, colors and labels of steps in pictures of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from epbuild.commands.graph import REMOTE, GraphNode, StepGraph
from epbuild.core.errors import printable
from epbuild.core.units import counted

_MAX_NAME = 48
_MAX_REASONS = 6


class StateLook(Struct, frozen=True):
    """Sign, border and colors of a state. Colors are fill and border, in light and dark themes."""

    sign: str
    border: str
    light: tuple[str, str]
    dark: tuple[str, str]


LOOKS: Mapping[str, StateLook] = {
    "failed": StateLook("✗", "bold", ("#ffe3e0", "#c4212c"), ("#5c1a1d", "#ff8f87")),
    "out of date": StateLook("△", "solid", ("#fff1cc", "#8a5d00"), ("#4d3800", "#e6b450")),
    "new": StateLook("+", "solid", ("#f1e5fd", "#7a46c9"), ("#3c2560", "#c6a4f7")),
    "restorable": StateLook("↻", "dashed", ("#dff0fd", "#0b61b8"), ("#0f3557", "#7cc0fa")),
    "current": StateLook("✓", "solid", ("#e3f5e7", "#1b7a34"), ("#123d1f", "#6fd48a")),
}
"""Looks by state. A result in the remote cache has the look of its state."""
TEXT = ("#1f2328", "#f0f3f6")
LINE = ("#6a737d", "#9aa4af")
FRAME = ("#b4bcc5", "#4a545f")
"""Colors in light and dark themes."""


def find_look(state: str) -> StateLook:
    return LOOKS[state.removesuffix(REMOTE)]


def format_counts(states: Mapping[str, int]) -> str:
    """Return the number of steps in each state with its sign, such as `✓ 8 current, + 4 new`."""
    return ", ".join(f"{find_look(state).sign} {number} {state}" for state, number in states.items())


def label_lines(node: GraphNode) -> tuple[str, ...]:
    """Return the label of a node without its sign. A group of steps also has the number in each state."""
    remote = REMOTE if node.state.endswith(REMOTE) and not node.grouped else ""
    first = f"{shorten_name(node.title)}{remote}"
    return (first, format_counts(node.states)) if node.grouped else (first,)


def heading_lines(graph: StepGraph) -> tuple[str, ...]:
    """Return the title of the picture, and how its steps are grouped."""
    total = f"{shorten_name(graph.recipe)}: {counted(graph.steps, 'step')}"
    if graph.grouped_by is None:
        return (total,)
    return total, f"grouped by {graph.grouped_by}: {counted(len(graph.nodes), 'node')}. Name steps to see them one by one."


def hover_lines(node: GraphNode) -> tuple[str, ...]:
    """Return the tooltip of a node."""
    state = format_counts(node.states) if node.grouped else node.state
    return (printable(node.name), state, *map(printable, node.reasons[:_MAX_REASONS]))


def shorten_name(text: str) -> str:
    """Return a printable name, without its middle if it is long."""
    text = printable(text)
    half = (_MAX_NAME - 3) // 2
    return text if len(text) <= _MAX_NAME else f"{text[:half]}...{text[-half:]}"

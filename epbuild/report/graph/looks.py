"""Signs, colors and words of steps in pictures of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from epbuild.commands.graph import REMOTE, GraphNode, StepGraph
from epbuild.core.errors import printable
from epbuild.core.units import counted

_LONGEST = 48
_MOST_REASONS = 6


class StateLook(Struct, frozen=True):
    """What a state looks like: a sign, a kind of border, and its colors on a light page and on a dark one (fill, border)."""

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
"""By state; that of a result in the remote cache looks alike."""
TEXT = ("#1f2328", "#f0f3f6")
LINE = ("#6a737d", "#9aa4af")
FRAME = ("#b4bcc5", "#4a545f")
"""Colours on a light page, and on a dark one."""


def look_of(state: str) -> StateLook:
    return LOOKS[state.removesuffix(REMOTE)]


def counts(states: Mapping[str, int]) -> str:
    """How many steps are in which state, each with its sign: `✓ 8 current, + 4 new`."""
    return ", ".join(f"{look_of(state).sign} {number} {state}" for state, number in states.items())


def label_lines(node: GraphNode) -> tuple[str, ...]:
    """A node's words, without its sign: a step has its kind and name, several have how many are in which state."""
    remote = REMOTE if node.state.endswith(REMOTE) and not node.grouped else ""
    first = f"{shortened(node.title)}{remote}"
    return (first, counts(node.states)) if node.grouped else (first,)


def heading_lines(graph: StepGraph) -> tuple[str, ...]:
    """What the picture is of, and what was grouped."""
    total = f"{shortened(graph.recipe)}: {counted(graph.steps, 'step')}"
    if graph.grouped_by is None:
        return (total,)
    return total, f"grouped by {graph.grouped_by}: {counted(len(graph.nodes), 'node')}. Name steps to see them one by one."


def hover_lines(node: GraphNode) -> tuple[str, ...]:
    """What is shown of a node where the pointer is."""
    state = counts(node.states) if node.grouped else node.state
    return (printable(node.name), state, *map(printable, node.reasons[:_MOST_REASONS]))


def shortened(text: str) -> str:
    """A name without what would be obeyed, and of a long one without its middle."""
    text = printable(text)
    half = (_LONGEST - 3) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}...{text[-half:]}"

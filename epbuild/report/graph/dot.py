"""Graph of steps in DOT, Graphviz's language, and as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epbuild.commands.graph import GraphNode, StepGraph
from epbuild.core.errors import printable
from epbuild.core.graphviz import svg_of
from epbuild.report.graph.looks import (
    FRAME,
    LINE,
    LOOKS,
    TEXT,
    find_look,
    format_counts,
    heading_lines,
    hover_lines,
    label_lines,
    shorten_name,
)

_FONT = "Arial"


def dot_text(graph: StepGraph) -> str:
    """Return a digraph from left to right, with a cluster for each box and a node for each step id."""
    heading = _quoted([*heading_lines(graph), format_counts(graph.states)], left=True)
    columns = 3 if graph.grouped_by is None else 4  # about as wide as a page
    lines = [
        "digraph plan {",
        f"  graph [rankdir=LR, pack=14, packmode=array_ct{columns}, nodesep=0.12, ranksep=0.5, labelloc=t, labeljust=l, label={heading},",
        f'         fontname="{_FONT}", fontsize=11, fontcolor="{TEXT[0]}", bgcolor=transparent];',
        f'  node [shape=box, style=filled, fontname="{_FONT}", fontsize=10, fontcolor="{TEXT[0]}", height=0.28, margin="0.1,0.04"];',
        f'  edge [color="{LINE[0]}", arrowsize=0.6];',
    ]
    boxes: dict[str, list[GraphNode]] = {}
    for node in graph.nodes:
        boxes.setdefault(node.box, []).append(node)
    for number, (box, nodes) in enumerate(boxes.items()):
        if box:
            style = f'style=rounded, color="{FRAME[0]}", fontsize=10'
            lines += [
                f"  subgraph cluster_{number} {{",
                f"    graph [label={_quoted([shorten_name(box)])}, {style}, tooltip={_quoted([box])}];",
                *(f"    {line}" for line in _nodes(nodes)),
                "  }",
            ]
        else:
            lines += [f"  {line}" for line in _nodes(nodes)]
    lines += [f"  {_quoted([graph.nodes[start].name])} -> {_quoted([graph.nodes[end].name])};" for start, end in graph.edges]
    return "\n".join([*lines, "}", ""])


def _nodes(nodes: Iterable[GraphNode]) -> Iterator[str]:
    for node in nodes:
        look = find_look(node.state)
        first, *more = label_lines(node)
        label = _quoted([first if more else f"{look.sign} {first}", *more])
        fill, border = look.light
        colors = f'style="filled,{look.border}", fillcolor="{fill}", color="{border}"'
        yield f"{_quoted([node.name])} [label={label}, tooltip={_quoted(hover_lines(node))}, {colors}];"


def _quoted(lines: Iterable[str], *, left: bool = False) -> str:
    """Return lines as a DOT string, with escapes of DOT and HTML neutralized."""
    escaped = (printable(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    end = "\\l" if left else "\\n"
    text = end.join(escaped)
    return f'"{text}{end if left else ""}"'


def svg_text(graph: StepGraph, program: str | None) -> str:
    """Return an SVG drawn by a Graphviz program, with colors for light and dark themes.

    Raises EnvironmentFailure.
    """
    drawn = svg_of(dot_text(graph), program)
    start = drawn.index("<svg")
    end = drawn.index(">", start) + 1
    return f"{drawn[:end]}\n<style>{_style()}</style>{drawn[end:]}"


def _style() -> str:
    """Return CSS that replaces the light colors of the elements in dark themes."""
    pairs = [TEXT, LINE, FRAME, *(pair for look in LOOKS.values() for pair in zip(look.light, look.dark, strict=True))]
    dark = "".join(f'[fill="{light}"]{{fill:{other}}}[stroke="{light}"]{{stroke:{other}}}' for light, other in pairs)
    font = "text{font-family:Helvetica,Arial,sans-serif}"
    return f"svg{{background:#fff}}{font}@media(prefers-color-scheme:dark){{svg{{background:#0d1117}}{dark}}}"

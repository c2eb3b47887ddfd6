"""Graphs of a plan: tree of lines, DOT, Mermaid, and SVG drawn by Graphviz."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from epbuild.commands.graph import REMOTE, GraphNode, StepGraph
from epbuild.core.errors import EnvironmentFailure, Problem, escape_controls
from epbuild.core.shown import shorten_name
from epbuild.core.units import format_count

_MAX_NAME = 48
_MAX_REASONS = 6
_FONT = "Arial"
_PLAIN = re.compile(r"[^A-Za-z0-9 .,:/()✗△↻✓-]")
_WIDTH = {"bold": "2px", "solid": "1px", "dashed": "1px"}


class StateStyle(Struct, frozen=True):
    """Sign, border and colors of a state. Colors are pairs of fill and border, for light and dark themes."""

    sign: str
    border: str
    light: tuple[str, str]
    dark: tuple[str, str]


STATE_STYLES: Mapping[str, StateStyle] = {
    "failed": StateStyle("✗", "bold", ("#ffe3e0", "#c4212c"), ("#5c1a1d", "#ff8f87")),
    "out of date": StateStyle("△", "solid", ("#fff1cc", "#8a5d00"), ("#4d3800", "#e6b450")),
    "new": StateStyle("+", "solid", ("#f1e5fd", "#7a46c9"), ("#3c2560", "#c6a4f7")),
    "restorable": StateStyle("↻", "dashed", ("#dff0fd", "#0b61b8"), ("#0f3557", "#7cc0fa")),
    "current": StateStyle("✓", "solid", ("#e3f5e7", "#1b7a34"), ("#123d1f", "#6fd48a")),
}
"""Styles by state. The style does not depend on whether the result is in the remote cache."""
TEXT = ("#1f2328", "#f0f3f6")
LINE = ("#6a737d", "#9aa4af")
FRAME = ("#b4bcc5", "#4a545f")
"""Frame colors in light and dark themes."""


def find_style(state: str) -> StateStyle:
    return STATE_STYLES[state.removesuffix(REMOTE)]


def format_counts(states: Mapping[str, int]) -> str:
    """Return the number of steps in each state with the sign of the state, such as `✓ 8 current, + 4 new`."""
    return ", ".join(f"{find_style(state).sign} {number} {state}" for state, number in states.items())


def format_label(node: GraphNode) -> tuple[str, ...]:
    """Return the label of a node without its sign. A group's label also has the number of steps in each state."""
    remote = REMOTE if node.state.endswith(REMOTE) and not node.grouped else ""
    first = f"{shorten_name(node.title, _MAX_NAME)}{remote}"
    return (first, format_counts(node.states)) if node.grouped else (first,)


def format_heading(graph: StepGraph) -> tuple[str, ...]:
    """Return the title of the picture. If steps are grouped, also return a line about the grouping."""
    total = f"{shorten_name(graph.recipe, _MAX_NAME)}: {format_count(graph.steps, 'step')}"
    if graph.grouped_by is None:
        return (total,)
    return total, f"grouped by {graph.grouped_by}: {format_count(len(graph.nodes), 'node')}. Name steps to see them one by one."


def format_tooltip(node: GraphNode) -> tuple[str, ...]:
    """Return the lines of a node's tooltip."""
    state = format_counts(node.states) if node.grouped else node.state
    return (escape_controls(node.name), state, *map(escape_controls, node.reasons[:_MAX_REASONS]))


def format_tree(graph: StepGraph) -> str:
    """Format a graph as a tree of lines. Its roots are the steps that no step needs, and below each step are the steps that it needs.

    A step that several steps need is expanded once. Later lines of the step end with `(above)`.
    """
    needs: dict[int, list[int]] = {}
    for start, end in graph.edges:
        needs.setdefault(end, []).append(start)
    inner = {start for start, _ in graph.edges}
    shown: set[int] = set()
    lines = [*format_heading(graph), format_counts(graph.states)]

    def add(number: int, margin: str, branch: str, below: str) -> None:
        node, name = graph.nodes[number], escape_controls(graph.nodes[number].name)
        text = f"{name}  {format_counts(node.states)}" if node.grouped else f"{find_style(node.state).sign} {name}"
        lines.append(f"{margin}{branch}{text}{'  (above)' if number in shown and number in needs else ''}")
        if number in shown:
            return
        shown.add(number)
        needed = needs.get(number, [])
        for need in needed:
            is_last = need == needed[-1]
            add(need, f"{margin}{below}", "└─ " if is_last else "├─ ", "   " if is_last else "│  ")

    for number in range(len(graph.nodes)):
        if number not in inner:
            add(number, "", "", "")
    return "\n".join([*lines, ""])


def format_dot(graph: StepGraph) -> str:
    """Format a graph as a DOT digraph from left to right, with a cluster for each box."""
    heading = _quote_dot([*format_heading(graph), format_counts(graph.states)], left=True)
    columns = 3 if graph.grouped_by is None else 4  # The columns make the picture about as wide as a page.
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
            attributes = f'style=rounded, color="{FRAME[0]}", fontsize=10'
            lines += [
                f"  subgraph cluster_{number} {{",
                f"    graph [label={_quote_dot([shorten_name(box, _MAX_NAME)])}, {attributes}, tooltip={_quote_dot([box])}];",
                *(f"    {line}" for line in _format_dot_nodes(nodes)),
                "  }",
            ]
        else:
            lines += [f"  {line}" for line in _format_dot_nodes(nodes)]
    lines += [
        f"  {_quote_dot([graph.nodes[start].name])} -> {_quote_dot([graph.nodes[end].name])};" for start, end in graph.edges
    ]
    return "\n".join([*lines, "}", ""])


def _format_dot_nodes(nodes: Iterable[GraphNode]) -> Iterator[str]:
    for node in nodes:
        style = find_style(node.state)
        first, *more = format_label(node)
        label = _quote_dot([first if more else f"{style.sign} {first}", *more])
        fill, border = style.light
        colors = f'style="filled,{style.border}", fillcolor="{fill}", color="{border}"'
        yield f"{_quote_dot([node.name])} [label={label}, tooltip={_quote_dot(format_tooltip(node))}, {colors}];"


def _quote_dot(lines: Iterable[str], *, left: bool = False) -> str:
    """Format lines as a DOT string with all DOT and HTML syntax escaped."""
    escaped = (escape_controls(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    end = "\\l" if left else "\\n"
    text = end.join(escaped)
    return f'"{text}{end if left else ""}"'


PROGRAMS = ("graphviz-pure", "dot")
"""Programs that draw graphs: a port of Graphviz, published as wheels, and Graphviz itself. Both convert DOT to the same SVG."""
_GRAPHVIZ_SECONDS = 300
_GRAPHVIZ_HINT = "Install Graphviz, or run `pip install 'epbuild[graph]'`; --format dot and --format mermaid need neither."


def find_graphviz() -> str | None:
    """Return the path of a program that draws graphs, or None. Search epbuild's environment before PATH."""
    folders = (sysconfig.get_path("scripts"), None)
    found = (shutil.which(name, path=folder) for name in PROGRAMS for folder in folders)
    return next(filter(None, found), None)


def convert_to_svg(dot: str, program: str | None) -> str:
    """Convert a DOT graph to SVG with `program`. Raises EnvironmentFailure: EPB445 if `program` is None, EPB446 if it fails."""
    if program is None:
        raise EnvironmentFailure(Problem("EPB445", "no Graphviz program was found to draw the graph", None, _GRAPHVIZ_HINT))
    try:
        done = subprocess.run(
            [program, "-Kdot", "-Tsvg"], input=dot.encode("utf-8"), capture_output=True, check=False, timeout=_GRAPHVIZ_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _make_drawing_error(program, str(error)) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 or not text.rstrip().endswith("</svg>"):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _make_drawing_error(
            program, lines[-1] if lines else f"the program exited with status {done.returncode} and wrote no SVG"
        )
    return text


def _make_drawing_error(program: str, why: str) -> EnvironmentFailure:
    message = f"{Path(program).name} could not draw the graph: {why}"
    return EnvironmentFailure(Problem("EPB446", message, None, "Name fewer steps, or use --format mermaid or dot."))


def draw_svg(graph: StepGraph, program: str | None) -> str:
    """Return an SVG drawn by a Graphviz program, with colors for light and dark themes.

    Raises EnvironmentFailure.
    """
    drawn = convert_to_svg(format_dot(graph), program)
    start = drawn.index("<svg")
    end = drawn.index(">", start) + 1
    return f"{drawn[:end]}\n<style>{_format_css()}</style>{drawn[end:]}"


def _format_css() -> str:
    """Return CSS that replaces light colors in dark themes."""
    pairs = [TEXT, LINE, FRAME, *(pair for style in STATE_STYLES.values() for pair in zip(style.light, style.dark, strict=True))]
    dark = "".join(f'[fill="{light}"]{{fill:{other}}}[stroke="{light}"]{{stroke:{other}}}' for light, other in pairs)
    font = "text{font-family:Helvetica,Arial,sans-serif}"
    return f"svg{{background:#fff}}{font}@media(prefers-color-scheme:dark){{svg{{background:#0d1117}}{dark}}}"


def format_mermaid(graph: StepGraph) -> str:
    """Format a graph as a Mermaid flowchart from left to right, with a title and a subgraph for each box."""
    title = ". ".join([*format_heading(graph), format_counts(graph.states)])
    lines = ["---", f"title: {_quote_yaml(title)}", "---", "flowchart LR"]
    boxes: dict[str, list[str]] = {}
    for number, node in enumerate(graph.nodes):
        boxes.setdefault(node.box, []).append(_format_mermaid_node(number, node))
    for number, (box, nodes) in enumerate(boxes.items()):
        if box:
            inside = ["direction LR", *nodes]
            lines += [
                f"  subgraph b{number}[{_quote_mermaid([shorten_name(box, _MAX_NAME)])}]",
                *(f"    {line}" for line in inside),
                "  end",
            ]
        else:
            lines += [f"  {node}" for node in nodes]
    lines += [f"  n{start} --> n{end}" for start, end in graph.edges]
    lines += _format_classes({node.state for node in graph.nodes})
    return "\n".join([*lines, ""])


def _format_mermaid_node(number: int, node: GraphNode) -> str:
    style = find_style(node.state)
    first, *more = format_label(node)
    return f"n{number}[{_quote_mermaid([first if more else f'{style.sign} {first}', *more])}]:::{_make_class_name(node.state)}"


def _format_classes(states: Iterable[str]) -> Iterator[str]:
    used = {_make_class_name(state) for state in states}
    for state, style in STATE_STYLES.items():
        if _make_class_name(state) in used:
            fill, border = style.light
            dashes = ",stroke-dasharray:4 3" if style.border == "dashed" else ""
            width = f"stroke-width:{_WIDTH[style.border]}{dashes}"
            yield f"  classDef {_make_class_name(state)} fill:{fill},stroke:{border},color:{TEXT[0]},{width}"


def _make_class_name(state: str) -> str:
    """Return the class name of a state, such as `outOfDate`."""
    first, *more = state.partition(" (")[0].split()
    return first + "".join(word.capitalize() for word in more)


def _quote_mermaid(lines: Iterable[str]) -> str:
    return '"' + "<br>".join(map(_escape_entities, lines)) + '"'


def _quote_yaml(text: str) -> str:
    """Return text as a YAML scalar with all Mermaid syntax escaped."""
    return '"' + _PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text) + '"'


def _escape_entities(text: str) -> str:
    """Escape Mermaid, Markdown and HTML syntax as entities."""
    return _PLAIN.sub(lambda found: "_" if found[0] == "_" else f"#{ord(found[0])};", text)

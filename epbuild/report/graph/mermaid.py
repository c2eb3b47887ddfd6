"""Graph of steps in Mermaid, which GitHub and many wikis draw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from epbuild.commands.graph import GraphNode, StepGraph
from epbuild.report.graph.looks import LOOKS, TEXT, find_look, format_counts, heading_lines, label_lines, shorten_name

_PLAIN = re.compile(r"[^A-Za-z0-9 .,:/()✗△↻✓-]")
_WIDTH = {"bold": "2px", "solid": "1px", "dashed": "1px"}


def mermaid_text(graph: StepGraph) -> str:
    """Return a flowchart from left to right, with a title and a subgraph for each box."""
    title = ". ".join([*heading_lines(graph), format_counts(graph.states)])
    lines = ["---", f"title: {_scalar(title)}", "---", "flowchart LR"]
    boxes: dict[str, list[str]] = {}
    for number, node in enumerate(graph.nodes):
        boxes.setdefault(node.box, []).append(_node(number, node))
    for number, (box, nodes) in enumerate(boxes.items()):
        if box:
            inside = ["direction LR", *nodes]
            lines += [f"  subgraph b{number}[{_quoted([shorten_name(box)])}]", *(f"    {line}" for line in inside), "  end"]
        else:
            lines += [f"  {node}" for node in nodes]
    lines += [f"  n{start} --> n{end}" for start, end in graph.edges]
    lines += _classes({node.state for node in graph.nodes})
    return "\n".join([*lines, ""])


def _node(number: int, node: GraphNode) -> str:
    look = find_look(node.state)
    first, *more = label_lines(node)
    return f"n{number}[{_quoted([first if more else f'{look.sign} {first}', *more])}]:::{_class(node.state)}"


def _classes(states: Iterable[str]) -> Iterator[str]:
    used = {_class(state) for state in states}
    for state, look in LOOKS.items():
        if _class(state) in used:
            fill, border = look.light
            dashes = ",stroke-dasharray:4 3" if look.border == "dashed" else ""
            yield (
                f"  classDef {_class(state)} fill:{fill},stroke:{border},color:{TEXT[0]},stroke-width:{_WIDTH[look.border]}{dashes}"
            )


def _class(state: str) -> str:
    """Return a state as a class name, such as `outOfDate`."""
    first, *more = state.partition(" (")[0].split()
    return first + "".join(word.capitalize() for word in more)


def _quoted(lines: Iterable[str]) -> str:
    return '"' + "<br>".join(map(_with_entities, lines)) + '"'


def _scalar(text: str) -> str:
    """Return a YAML scalar with all syntax of Mermaid escaped."""
    return '"' + _PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text) + '"'


def _with_entities(text: str) -> str:
    """Escape syntax of Mermaid, Markdown and HTML as entities."""
    return _PLAIN.sub(lambda found: "_" if found[0] == "_" else f"#{ord(found[0])};", text)

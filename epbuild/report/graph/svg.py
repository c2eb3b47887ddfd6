"""The graph of steps in SVG, for light pages and dark ones."""

from __future__ import annotations

from epbuild.commands.graph import StepGraph
from epbuild.core.graphviz import svg_of
from epbuild.report.graph.dot import dot_text
from epbuild.report.graph.looks import FRAME, LINE, LOOKS, TEXT


def svg_text(graph: StepGraph, program: str | None) -> str:
    """The picture, by a program of Graphviz's: one file, with colours for dark pages where a reader's system has those.

    Raises EnvironmentFailure.
    """
    drawn = svg_of(dot_text(graph), program)
    start = drawn.index("<svg")
    end = drawn.index(">", start) + 1
    return f"{drawn[:end]}\n<style>{_style()}</style>{drawn[end:]}"


def _style() -> str:
    """The colours of dark pages in place of those of light ones, which every element has as its own."""
    pairs = [TEXT, LINE, FRAME, *(pair for look in LOOKS.values() for pair in zip(look.light, look.dark, strict=True))]
    dark = "".join(f'[fill="{light}"]{{fill:{other}}}[stroke="{light}"]{{stroke:{other}}}' for light, other in pairs)
    font = "text{font-family:Helvetica,Arial,sans-serif}"
    return f"svg{{background:#fff}}{font}@media(prefers-color-scheme:dark){{svg{{background:#0d1117}}{dark}}}"

"""Graphviz, the program that lays out graphs."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

from epbuild.core.errors import EnvironmentFailure, Problem

PROGRAMS = ("graphviz-pure", "dot")
"""A port of Graphviz that is published as wheels, and Graphviz itself. Both read DOT and write the same SVG."""
_SECONDS = 300
_HINT = "Install one with `pip install 'epbuild[graph]'`, or Graphviz itself; dot and mermaid need none (--format)."


def find_graphviz() -> str | None:
    """Return the program that draws graphs, from epbuild's environment or else from the PATH, or None."""
    folders = (sysconfig.get_path("scripts"), None)
    found = (shutil.which(name, path=folder) for name in PROGRAMS for folder in folders)
    return next(filter(None, found), None)


def svg_of(dot: str, program: str | None) -> str:
    """Convert a graph in DOT to SVG with the program of `find_graphviz`. Raises EnvironmentFailure (EPB445, EPB446)."""
    if program is None:
        raise EnvironmentFailure(Problem("EPB445", "no program is here that draws graphs (graphviz)", None, _HINT))
    try:
        done = subprocess.run(
            [program, "-Kdot", "-Tsvg"], input=dot.encode("utf-8"), capture_output=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(program, str(error)) from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 or not text.rstrip().endswith("</svg>"):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _failed(program, lines[-1] if lines else f"it ended with status {done.returncode}, and wrote no SVG")
    return text


def _failed(program: str, why: str) -> EnvironmentFailure:
    message = f"{Path(program).name} could not draw the graph: {why}"
    return EnvironmentFailure(Problem("EPB446", message, None, "Name fewer steps, or take --format mermaid or dot."))

"""`epbuild graph`: tree or picture of the plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.options import MACHINE, UsageError, declare_option, make_application, make_choice
from epbuild.commands.graph import build_step_graph
from epbuild.report.graph import draw_svg, find_graphviz, format_dot, format_mermaid, format_tree
from epbuild.report.listeners import WaitingRow, write_document
from epbuild.report.terminal.problems import print_warnings

_FORMATS: dict[str, Any] = {
    "tree": format_tree,
    "svg": lambda graph: draw_svg(graph, find_graphviz()),
    "dot": format_dot,
    "mermaid": format_mermaid,
}
_ENDINGS = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".mermaid": "mermaid"}

app = make_application()


@app.command(exits={0: "the graph was written", 3: f"{MACHINE}, or Graphviz is missing"})
def graph(
    target: arguments.Target,
    *,
    form: Annotated[
        str | None,
        declare_option(
            "--format",
            help="Format to write.",
            default="suffix of --output; else tree on a terminal, or svg",
            **make_choice(_FORMATS),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        declare_option("--output", "-o", metavar="FILE", dir_okay=False, help="File to write.", default="standard output"),
    ] = None,
    locked: arguments.Locked = False,
    no_exec: arguments.NoExec = False,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    all_warnings: arguments.AllWarnings = False,
) -> int:
    """Draw the plan of RECIPE: its steps, their states, and their dependencies.

    On a terminal, the steps are a tree: below each step are the steps that it needs. With --output, they are a picture.

    If there are more than 200 steps, they are combined by group and target, by group, by target, or by kind. SVG needs Graphviz or
    `pip install 'epbuild[graph]'`.
    """
    default = "tree" if sys.stdout.isatty() else "svg"
    chosen = form or (default if output is None else _ENDINGS.get(output.suffix.lower()))
    if chosen is None:
        raise UsageError(f"the name of '{output}' implies no format: end it in {', '.join(_ENDINGS)}, or set --format")
    request = target.request(settings, locked=locked, remote=remote.choice)
    with WaitingRow() as waiting:
        found = api.plan(request.without_programs() if no_exec else request, waiting)
    print_warnings(found.plan.warnings, all_warnings=all_warnings)
    text = _FORMATS[chosen](build_step_graph(str(request.recipe), found.steps()))
    if output is None:
        sys.stdout.write(text)
    else:
        write_document(output, text)
    return 0

"""`epbuild inspect`: contents of an EPContext model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, make_application
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.artifacts import print_inspection, print_inspections

app = make_application()


@app.command(
    exits={
        0: "all models are complete, and all references resolve",
        1: "a model is missing or incomplete, or a reference does not resolve",
        2: COMMAND_LINE,
    }
)
def inspect(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="ONNX files, or folders with ONNX files.", show_default=False)
    ],
    json: arguments.Json = False,
) -> int:
    """Show the EPContext nodes of each FILE with their references and targets, and the CPU fallback nodes.

    For several files or a folder, also show which models share a file, and how many bytes this saves.
    """
    found = api.inspect(*files)
    if json:
        print_json(found.document)
    elif found.several:
        print_inspections(found.document)
    else:
        print_inspection(found.document)
    return 0 if found.sound else 1

"""`epbuild inspect`: contents of an EPContext model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild import api
from epbuild.cli import arguments
from epbuild.cli.options import application
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.artifacts import print_inspection, print_inspections

app = application()


@app.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="ONNX files, or folders of them.", show_default=False)],
    json: arguments.Json = False,
) -> int:
    """Show the EPContext nodes of ONNX FILEs, what they refer to, what they were compiled for, and what runs outside the EP.

    Of several files, or a folder, also which of them share a file, and what that saves. Exit code 1: a reference does not resolve.
    """
    found = api.inspect(*files)
    if json:
        print_json(found.document)
    elif found.several:
        print_inspections(found.document)
    else:
        print_inspection(found.document)
    return 0 if found.sound else 1

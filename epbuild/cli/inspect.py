"""`epbuild inspect`: what is inside an EPContext model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.report.documents import print_json
from epbuild.report.inspection import print_inspection, print_inspections
from epbuild.verify.inspection import inspect_files, inspect_model

app = arguments.application()


@app.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="ONNX files, or folders of them.", show_default=False)],
    json: arguments.Json = False,
) -> int:
    """Show the EPContext nodes of ONNX FILEs, what they refer to, what they were compiled for, and what runs outside the EP.

    Of several files, or a folder, also which of them share a file, and what that saves. Exit code 1: a reference does not resolve.
    """
    if len(files) == 1 and not files[0].is_dir():
        found = inspect_model(files[0])
        models = [found]
        show = print_inspection
    else:
        found = inspect_files(files)
        models = found["models"]
        show = print_inspections
    if json:
        print_json(found)
    else:
        show(found)
    problems = [model.get("problem") for model in models]
    problems += [node["problem"] for model in models for node in model.get("ep_context_nodes", ())]
    return 1 if any(problems) else 0

"""`epbuild inspect`: what is inside an EPContext model."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.cli import arguments
from epbuild.report import print_inspection, print_json
from epbuild.verify import inspect_model


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@arguments.json
def inspect(file: Path, json: bool) -> int:
    """Show the EPContext nodes of an ONNX FILE, what they refer to, what they were compiled for, and what runs outside the EP.

    Exit code 1: a reference does not resolve.
    """
    found = inspect_model(file)
    if json:
        print_json(found)
    else:
        print_inspection(found)
    return 0 if all(not node["problem"] for node in found["ep_context_nodes"]) else 1

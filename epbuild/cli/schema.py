"""`epbuild schema`: JSON Schemas, for editors and for users' own checks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import application, choice, option
from epbuild.commands.schema import SCHEMAS, editor_schema
from epbuild.core.atomic import write_file
from epbuild.core.canonical import indented_json

app = application()


@app.command()
def schema(
    name: Annotated[str, typer.Argument(help=f"Which; default: {SCHEMAS[0]}.", show_default=False, **choice(SCHEMAS))] = SCHEMAS[
        0
    ],
    output: Annotated[
        Path | None, option("--output", "-o", metavar="PATH", dir_okay=False, help="Write it to this file.")
    ] = None,
) -> int:
    """Print the JSON Schema of recipes (the default), manifests, catalog files, reports, or what doctor prints.

    That of the recipe knows the options of every EP: an editor with a YAML language server completes and explains them in a recipe that
    begins with '# yaml-language-server: $schema=FILE'.
    """
    text = indented_json(editor_schema(name))
    if output is None:
        sys.stdout.write(f"{text}\n")
    else:
        write_file(output, f"{text}\n")
    return 0

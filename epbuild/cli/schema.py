"""`epbuild schema`: the JSON Schemas, for editors and for checks of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.commands.schema import SCHEMAS, editor_schema
from epbuild.core.atomic import write_file
from epbuild.core.canonical import indented_json
from epbuild.report.terminal.screen import print_line

app = arguments.application()


@app.command()
def schema(
    name: Annotated[
        str, typer.Argument(help=f"Which; default: {SCHEMAS[0]}.", show_default=False, **arguments.choice(SCHEMAS))
    ] = SCHEMAS[0],
    output: Annotated[
        Path | None, arguments.option("--output", "-o", metavar="PATH", dir_okay=False, help="Write it to this file.")
    ] = None,
) -> int:
    """Print the JSON Schema of recipes (the default), manifests, catalog files, reports, or what doctor prints.

    That of the recipe knows the options of every EP: an editor with a YAML language server completes and explains them in a recipe that
    begins with '# yaml-language-server: $schema=FILE'.
    """
    text = indented_json(editor_schema(name))
    if output is None:
        print_line(text)
    else:
        write_file(output, f"{text}\n")
    return 0

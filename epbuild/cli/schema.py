"""`epbuild schema`: JSON Schemas, for editors and for users' own checks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import COMMAND_LINE, declare_option, make_application, make_choice, with_default
from epbuild.commands.schema import SCHEMAS, build_editor_schema
from epbuild.core.atomic import write_file
from epbuild.core.canonical import encode_indented

app = make_application()


@app.command(exits={0: "the schema was written", 2: COMMAND_LINE, 3: "the file cannot be written"})
def schema(
    name: Annotated[
        str, typer.Argument(help=with_default("The schema to print.", SCHEMAS[0]), show_default=False, **make_choice(SCHEMAS))
    ] = SCHEMAS[0],
    output: Annotated[
        Path | None,
        declare_option("--output", "-o", metavar="PATH", dir_okay=False, help="File to write.", default="standard output"),
    ] = None,
) -> int:
    """Print the JSON Schema of recipes, manifests, catalog files, reports, or the output of `doctor --json`.

    The schema of recipes includes the options of every EP. An editor with a YAML language server uses it to complete and explain these
    options in recipes that begin with '# yaml-language-server: $schema=FILE'.
    """
    text = encode_indented(build_editor_schema(name))
    if output is None:
        sys.stdout.write(f"{text}\n")
    else:
        write_file(output, f"{text}\n")
    return 0

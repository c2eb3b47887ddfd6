"""`epbuild schema`: the JSON Schemas, for editors and for checks of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import click

from epbuild.newfile import new_file
from epbuild.reference import SCHEMAS, editor_schema
from epbuild.report import print_line


@click.command()
@click.argument("name", type=click.Choice(SCHEMAS), default=SCHEMAS[0])
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
def schema(name: str, output: Path | None) -> int:
    """Print the JSON Schema of recipes (the default), manifests, or catalog files.

    That of the recipe knows the options of every EP: an editor with a YAML language server completes and explains them in a recipe that
    begins with '# yaml-language-server: $schema=FILE'.
    """
    text = json.dumps(editor_schema(name), indent=2)
    if output is None:
        print_line(text)
    else:
        with new_file(output, f"{text}\n", overwrite=True):
            pass
    return 0

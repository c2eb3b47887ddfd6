"""`epbuild merge`: merge several compiled models into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import UsageError, application, option, options
from epbuild.commands.artifacts import merge as merged
from epbuild.report.terminal.screen import print_line

app = application()


@app.command()
def merge(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL MODEL...", help="The models, in the order in which they run.", show_default=False),
    ],
    *,
    output: Annotated[Path, option("--output", "-o", metavar="OUT.onnx", help="The new model.")],
    connections: Annotated[
        list[str],
        options(
            "--connect",
            "-c",
            metavar="A.OUTPUT=B.INPUT",
            help="Feed an output of one model into an input of a later one; models go by their file's stem, or by number from 1.",
        ),
    ],
    prefixes: Annotated[
        list[str],
        options("--prefix", "-p", metavar="PREFIX", help="What to put before the names in a model: once for each, '' for none."),
    ],
) -> int:
    """Glue compiled models, in the order in which they run, into one model with the EPContext nodes of all of them.

    Without --connect, an output feeds the inputs of its name in later models. All other inputs and outputs stay; an input that
    several models have under one name becomes one. The context binaries are copied beside OUT.onnx. What an EP would not load, or would
    compute wrong, is refused.
    """
    if len(models) < 2:
        raise UsageError("name at least two models")
    if prefixes and len(prefixes) != len(models):
        raise UsageError(f"give --prefix once for each of the {len(models)} models ('' for none)")
    made = merged(models, prefixes, connections, output)
    print_line(f"wrote    {made.model}")
    for path in made.files:
        print_line(f"file     {path}")
    for item in made.connections:
        print_line(f"feeds    {item.output} of {models[item.source]} -> {item.input} of {models[item.target]}")
    if not made.connections:
        print_line("feeds    nothing: no output has the name of a later model's input")
    for name in made.shared_inputs:
        print_line(f"shared   input {name}")
    for note in made.notes:
        print_line(f"note     {note}")
    return 0

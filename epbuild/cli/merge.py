"""`epbuild merge`: merge several compiled models into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import UsageError, declare_option, declare_options, make_application
from epbuild.commands.artifacts import merge as merged
from epbuild.report.terminal.screen import print_line

app = make_application()
EXITS = {
    0: "the merged model was written",
    1: "a model is missing or incomplete",
    2: "the models cannot be merged, or the command line is invalid; nothing was written",
}


@app.command(exits=EXITS)
def merge(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL MODEL...", help="Compiled models, in the order in which they run.", show_default=False),
    ],
    *,
    output: Annotated[Path, declare_option("--output", "-o", metavar="OUT.onnx", help="File to write the merged model to.")],
    connections: Annotated[
        list[str],
        declare_options(
            "--connect",
            "-c",
            metavar="A.OUTPUT=B.INPUT",
            help="Connect an output of one model to an input of a later model. Write models as file stems, or as numbers from 1.",
        ),
    ],
    prefixes: Annotated[
        list[str],
        declare_options(
            "--prefix",
            "-p",
            metavar="PREFIX",
            help="Prefix for the names in a model. Pass one for each model; '' means no prefix.",
        ),
    ],
) -> int:
    """Merge compiled models into one model with the EPContext nodes of all of them.

    Without --connect, outputs are connected to inputs of the same name in later models. Inputs with the same name become one
    input. All other inputs and outputs remain. Context binaries are copied next to OUT.onnx. The command fails if an EP could not
    load the merged model, or would compute incorrect results.
    """
    if len(models) < 2:
        raise UsageError("name at least two models")
    if prefixes and len(prefixes) != len(models):
        raise UsageError(f"pass --prefix once for each of the {len(models)} models ('' for none)")
    made = merged(models, prefixes, connections, output)
    print_line(f"wrote    {made.model}")
    for path in made.files:
        print_line(f"file     {path}")
    for item in made.connections:
        print_line(f"feeds    {item.output} of {models[item.source]} -> {item.input} of {models[item.target]}")
    if not made.connections:
        print_line("feeds    nothing: no output has the same name as an input of a later model")
    for name in made.shared_inputs:
        print_line(f"shared   input {name}")
    for note in made.notes:
        print_line(f"note     {note}")
    return 0

"""`epbuild wrap`: write EPContext models for a context binary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import MACHINE, declare_option, make_application
from epbuild.commands.wrap import wrap as write_models
from epbuild.report.json.artifacts import build_wrapped_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.artifacts import print_wrapped
from epbuild.session.events import note_lines

app = make_application()


@app.command(
    exits={
        0: "the models were written",
        2: "the file cannot be wrapped, or the command line is invalid; nothing was written",
        3: MACHINE,
    }
)
def wrap(
    binary: Annotated[
        Path,
        typer.Argument(metavar="BINARY", help="Context binary, such as one of QAIRT or Qualcomm AI Hub.", show_default=False),
    ],
    *,
    output: Annotated[
        Path | None,
        declare_option(
            "--output",
            "-o",
            metavar="PATH",
            help="Folder to write the models and a copy of the binary to, or new .onnx file for a binary with one graph.",
            default="the folder of the binary, which is not copied",
        ),
    ] = None,
    quantized_io: Annotated[
        bool,
        declare_option("--quantized-io", help="Keep quantized inputs and outputs as integers, instead of adding float32 ones."),
    ] = False,
    interpreter: Annotated[
        Path | None,
        declare_option(
            "--interpreter",
            metavar="PATH",
            help="Python interpreter of the environment whose EP package reads the binary.",
            default="the newest toolchain with the EP",
        ),
    ] = None,
    json: arguments.Json = False,
) -> int:
    """Write an EPContext model for each graph of a context BINARY of another tool.

    The EP's own library reads the graphs, their inputs and their outputs, in a separate process. A binary with one graph becomes
    BINARY_ctx.onnx, and other graphs become GRAPH_ctx.onnx.
    """
    with WaitingRow() as waiting:
        made = write_models(binary, output, interpreter, note_lines(waiting), quantized_io=quantized_io)
    if json:
        print_json(build_wrapped_document(made))
    else:
        print_wrapped(made)
    return 0

"""`epbuild relink`: change where compiled models keep their context binaries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import Excludes, UsageError, declare_option, make_application
from epbuild.commands.artifacts import find_models
from epbuild.commands.artifacts import relink as change
from epbuild.onnxfile.edit.packaging import Packaging
from epbuild.report.terminal.screen import print_line

app = make_application()


_RULES = (
    Excludes(
        ("--embed",),
        ("--extract", "--binary"),
        "--embed writes no separate file, so it cannot be combined with --extract or --binary",
    ),
)


@app.command(
    rules=_RULES,
    exits={
        0: "the models were changed",
        1: "a model is missing or incomplete, or the result is not equivalent; nothing was changed",
        2: "the change is refused, or the command line is invalid; nothing was changed",
    },
)
def relink(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Compiled models. A folder stands for all models in it.", show_default=False),
    ],
    embed: Annotated[bool, declare_option("--embed", help="Embed the context binary in the model.")] = False,
    extract: Annotated[
        bool,
        declare_option("--extract", help="Write the embedded context to a separate file, named by --binary or after the model."),
    ] = False,
    binary: Annotated[
        str | None,
        declare_option(
            "--binary",
            metavar="NAME.bin",
            help="New name of the context binary. It may have subfolders, as in contexts/NAME.bin.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        declare_option("--output", "-o", metavar="PATH", help="Folder or new .onnx file to write the result to."),
    ] = None,
    in_place: Annotated[bool, declare_option("--in-place", help="Change the models in place.")] = False,
) -> int:
    """Embed, extract, rename or move the context binary of each MODEL, without compiling again.

    Models that share a context binary must be changed together. The result is read back and compared before any file is replaced. With
    --in-place, the old binary is removed once no model in the folder refers to it.
    """
    if not (embed or extract or binary):
        raise UsageError("choose what to change: --embed, --extract or --binary NAME.bin")
    if in_place == (output is not None):
        raise UsageError("choose where to write the result: either -o OUT or --in-place")
    packaging: Packaging = "embed" if embed else "extract" if extract else "rename"
    named = find_models(models)
    if output is not None and output.suffix == ".onnx" and len(named) > 1:
        raise UsageError(f"-o must name a folder, because there are {len(named)} models")
    made = change(named, packaging, binary, output)
    for label, paths in (("wrote", made.models), ("binary", made.binaries), ("removed", made.removed)):
        for path in paths:
            print_line(f"{label:<9}{path}")
    for path in made.kept:
        print_line(f"kept     {path}: {', '.join(str(file) for file in made.unreadable)} cannot be read and may refer to it")
    return 0

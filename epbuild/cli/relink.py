"""`epbuild relink`: change where compiled models keep their context binaries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epbuild.cli.options import Excludes, UsageError, application, option
from epbuild.commands.artifacts import models_in
from epbuild.commands.artifacts import relink as change
from epbuild.onnxfile.edit.packaging import Packaging
from epbuild.report.terminal.screen import print_line

app = application()


_RULES = (
    Excludes(("--embed",), ("--extract", "--binary"), "--embed leaves no file: it goes with neither --extract nor --binary"),
)


@app.command(rules=_RULES)
def relink(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="The models; a folder means all models in it.", show_default=False),
    ],
    embed: Annotated[bool, option("--embed", help="Put the context binary into the model.")] = False,
    extract: Annotated[
        bool,
        option("--extract", help="Put the embedded context into a file of its own: --binary, or the model's name."),
    ] = False,
    binary: Annotated[
        str | None,
        option(
            "--binary",
            metavar="NAME.bin",
            help="The context binary's new name, which may have subfolders, as in contexts/NAME.bin.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="PATH", help="Where the result goes: a folder, or a new .onnx file."),
    ] = None,
    in_place: Annotated[bool, option("--in-place", help="Change the models themselves.")] = False,
) -> int:
    """Embed, extract, rename or move the context binary of each MODEL, without a recompile.

    Models that share a context binary are changed together. The result is read again before anything is put in place: the same
    context, and the same in everything else. In place, the old binary is removed when nothing in the folder refers to it any more.
    """
    if not (embed or extract or binary):
        raise UsageError("name what to change: --embed, --extract or --binary NAME.bin")
    if in_place == (output is not None):
        raise UsageError("name where the result goes: either -o OUT or --in-place")
    packaging: Packaging = "embed" if embed else "extract" if extract else "rename"
    named = models_in(models)
    if output is not None and output.suffix == ".onnx" and len(named) > 1:
        raise UsageError(f"-o must be a folder for {len(named)} models")
    made = change(named, packaging, binary, output)
    for label, paths in (("wrote", made.models), ("binary", made.binaries), ("removed", made.removed)):
        for path in paths:
            print_line(f"{label:<9}{path}")
    for path in made.kept:
        print_line(f"kept     {path}: {', '.join(str(file) for file in made.unreadable)} cannot be read, and may refer to it")
    return 0

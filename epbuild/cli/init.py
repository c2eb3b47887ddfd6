"""`epbuild init`: first recipe, from questions or from options."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from epbuild.cli import arguments
from epbuild.cli.options import UsageError, application, choice, option, options
from epbuild.commands.init.answers import BadAnswer, Given, write_first_recipe
from epbuild.commands.init.choices import KINDS
from epbuild.report.terminal.recipes import TerminalQuestions, print_first_recipe

_EP: dict[str, Any] = choice(KINDS)

app = application()


@app.command()
def init(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FOLDER | MODEL...]",
            help="The folder to write the recipe into, whose *.onnx are the models; or models: files, folders and globs, for a recipe in "
            "the current folder. Default: the current folder.",
            default_factory=list,
            show_default=False,
        ),
    ],
    *,
    models: Annotated[
        list[str],
        options("--model", "-m", metavar="PATH", help="A source model: a file, folder, glob or address. Give it once for each."),
    ],
    sizes: Annotated[
        list[str],
        options(
            "--size",
            "-s",
            metavar="[MODEL:]INPUT=SIZES",
            help="The sizes of an input with open dimensions, such as x=1,3,320,320: of every model that has it, or of one. Give it once "
            "for each.",
        ),
    ],
    ep: Annotated[str | None, option("--ep", help="The execution provider.", **_EP)] = None,
    targets: Annotated[
        list[str],
        options(
            "--target",
            "--soc",
            "-t",
            metavar="[NAME=]VALUE",
            help="What to compile for: "
            + "; ".join(f"for {name}, {kind.start.words}" for name, kind in KINDS.items() if kind.asks)
            + ". Give it once for each.",
        ),
    ],
    share_weights: Annotated[
        bool | None,
        option("--share-weights/--no-share-weights", help="Whether the models share one context binary."),
    ] = None,
    name: arguments.NewName = None,
    output: arguments.NewRecipe = arguments.DEFAULT,
    force: arguments.Force = False,
) -> int:
    """Write a short recipe that validates and builds, for the models that it finds.

    On a terminal, it asks for what no flag gives. Elsewhere, it guesses the sizes of open dimensions that no --size gives.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    given = Given(places, models, sizes, KINDS[ep] if ep else None, targets, share_weights, name, output, force)
    try:
        written = write_first_recipe(given, TerminalQuestions() if is_terminal else None)
    except BadAnswer as error:
        raise UsageError(str(error)) from error
    print_first_recipe(written, with_models=not is_terminal)
    return 0

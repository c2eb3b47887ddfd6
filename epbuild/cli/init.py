"""`epbuild init`: first recipe, from questions or from options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epbuild.cli import arguments
from epbuild.cli.options import declare_option, make_application, make_choice, with_default
from epbuild.commands.init.answers import Given, write_first_recipe
from epbuild.commands.init.choices import list_starter_kinds
from epbuild.report.terminal.recipes import make_questions, print_first_recipe

_EP: dict[str, Any] = make_choice(list_starter_kinds())

app = make_application()


@app.command(exits={0: "the recipe was written", 2: "a model or an answer is invalid, or the recipe already exists"})
def init(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[FOLDER | MODEL...]",
            help=with_default(
                "Folder with models, to which the recipe is written; or models (files, folders, globs) for a recipe in the current folder.",
                "the current folder",
            ),
            default_factory=list,
            show_default=False,
        ),
    ],
    *,
    models: Annotated[
        list[str],
        arguments.declare_models("Source model: a file, folder, glob or address"),
    ],
    sizes: Annotated[
        list[str],
        arguments.declare_sizes("Sizes of an input with open dimensions, such as x=1,3,320,320, in all models or in MODEL"),
    ],
    ep: Annotated[str | None, declare_option("--ep", help="EP to compile for.", **_EP)] = None,
    targets: Annotated[
        list[str],
        arguments.declare_targets(
            "Target to compile for: "
            + "; ".join(f"for {name}, {kind.start.words}" for name, kind in list_starter_kinds().items() if kind.asks)
        ),
    ],
    share_weights: Annotated[
        bool | None,
        declare_option("--share-weights/--no-share-weights", help="Build one context binary for all models, or one per model."),
    ] = None,
    name: arguments.NewName = None,
    output: arguments.NewRecipe = arguments.DEFAULT,
    force: arguments.Force = False,
) -> int:
    """Write a short recipe that validates and builds.

    On a terminal, the command asks for every value that no option sets. Otherwise, it guesses the sizes of open dimensions that no --size
    sets.
    """
    questions = make_questions()
    given = Given(places, models, sizes, list_starter_kinds()[ep] if ep else None, targets, share_weights, name, output, force)
    written = write_first_recipe(given, questions)
    print_first_recipe(written, with_models=questions is None)
    return 0

"""`epbuild add`: models and targets of an existing recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from epbuild.cli import arguments
from epbuild.cli.options import declare_option, make_application, make_choice
from epbuild.commands.add import add_models, add_targets
from epbuild.commands.init.choices import list_starter_kinds
from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.report.terminal.recipes import make_questions, print_addition

app = make_application(subcommand_metavar="COMMAND [ARGS]...")

_EP: dict[str, Any] = make_choice(list_starter_kinds())
_EXITS = {0: "the recipe was changed", 2: "the recipe or the command line is invalid; nothing was written"}
_Recipe = Annotated[
    Path,
    arguments.declare_recipe("The recipe to change.", default=DEFAULT_RECIPE),
]


@app.callback(exits=_EXITS)
def add() -> None:
    """Add models or targets to a recipe. Its comments, order and formatting stay as they are."""


@app.command(exits=_EXITS, short_help="Add models to a recipe.")
def model(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL...",
            help="Models: files, folders, globs or addresses. Without NAME, models are named after their files.",
            show_default=False,
        ),
    ],
    *,
    sizes: Annotated[
        list[str],
        arguments.declare_sizes("Sizes of an input with open dimensions, such as x=1,3,320,320"),
    ],
    recipe: _Recipe = arguments.DEFAULT,
) -> int:
    """Add models to a recipe.

    If a target needs static shapes, sizes of open dimensions are asked for on a terminal, and guessed otherwise. The recipe is changed
    only if it is valid afterwards.
    """
    print_addition(add_models(recipe, places, sizes, make_questions()))
    return 0


@app.command(exits=_EXITS, short_help="Add targets to a recipe.")
def target(
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="[[NAME=]VALUE...]",
            help="What to compile for, as in `epbuild init --target`, such as an SoC.",
            default_factory=list,
            show_default=False,
        ),
    ],
    *,
    ep: Annotated[str | None, declare_option("--ep", help="EP of the targets.", default="the recipe's EP", **_EP)] = None,
    recipe: _Recipe = arguments.DEFAULT,
) -> int:
    """Add targets to a recipe. The recipe is changed only if it is valid afterwards."""
    print_addition(add_targets(recipe, values, ep))
    return 0

"""Arguments that several commands take, in one place so that they read alike."""

from __future__ import annotations

from pathlib import Path

import click

_DEFAULT_RECIPE = Path("epbuild.yaml")

recipe = click.argument("recipe", type=click.Path(path_type=Path), default=_DEFAULT_RECIPE)
recipe_option = click.option(
    "--recipe", "-r", type=click.Path(path_type=Path), default=_DEFAULT_RECIPE, show_default=True, help="The recipe."
)
steps = click.argument("steps", nargs=-1)
json = click.option("--json", is_flag=True, help="Print JSON only.")
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="vars.NAME=VALUE",
    help="Give a variable of the recipe another value, for this run.",
)

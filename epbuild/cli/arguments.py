"""Arguments that several commands take, in one place so that they read alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from epbuild.snapshot import DEFAULT_RECIPE
from epbuild.units import bytes_of, seconds_of


class Amount(click.ParamType[int]):
    """A number with a unit, read by `read`."""

    def __init__(self, name: str, read: Callable[[str], int]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`value` in the smallest of its units."""
        if isinstance(value, int):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} is no {self.name}. {error}", param, ctx)


SIZE = Amount("size", bytes_of)
"""Bytes, such as `20GB`."""
AGE = Amount("time", seconds_of)
"""Seconds, such as `30d`."""

_DEFAULT_RECIPE = Path(DEFAULT_RECIPE)

recipe = click.argument("recipe", type=click.Path(path_type=Path), default=_DEFAULT_RECIPE)
recipe_option = click.option(
    "--recipe", "-r", type=click.Path(path_type=Path), default=_DEFAULT_RECIPE, show_default=True, help="The recipe."
)
steps = click.argument("steps", nargs=-1)
json = click.option("--json", is_flag=True, help="Print JSON only.")
locked = click.option("--locked", is_flag=True, help="Refuse whatever is not as the recipe's lock says (`epbuild lock`).")
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="vars.NAME=VALUE",
    help="Give a variable of the recipe another value, for this run.",
)


def tell(text: str) -> None:
    """A line about what takes long, beside the answer, which alone goes to standard output."""
    click.echo(text, err=True)

"""`epbuild gc`: make the store smaller."""

from __future__ import annotations

import click

from epbuild.build import tidy
from epbuild.cli import arguments
from epbuild.report import print_json, print_tidied, tidied_document
from epbuild.store import Limits, cache_directory


@click.command()
@click.option(
    "--max-size", type=arguments.SIZE, metavar="SIZE", help="Remove more, until the store has at most SIZE, such as 20GB."
)
@click.option(
    "--max-age",
    type=arguments.AGE,
    metavar="TIME",
    default="30d",
    show_default=True,
    help="Remove what nothing needs and nobody used for TIME.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be removed, and remove nothing.")
@arguments.json
def gc(max_size: int | None, max_age: int, dry_run: bool, json: bool) -> int:
    """Remove from the store what no build needs, the longest unused first.

    The store is shared by all workspaces of this user. What they built last, and still have in place, is never removed, nor what anyone
    used within the last hour: this is safe beside builds that are running. What is removed can be made again. Toolchains stay.
    """
    place, limits = cache_directory(), Limits(max_age, max_size)
    found = tidy(place, limits, dry_run=dry_run)
    if json:
        print_json(tidied_document(place, found, limits, dry_run=dry_run))
    else:
        print_tidied(place, found, limits, dry_run=dry_run)
    return 0

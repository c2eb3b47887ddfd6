"""`epbuild clean`: remove what was emitted."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.build import Request, check_idle, remove_workspace
from epbuild.build import clean as take_back
from epbuild.cli import arguments
from epbuild.report import print_clean_sum, print_cleaned


@click.command()
@arguments.recipe
@arguments.steps
@click.option(
    "--all", "everything", is_flag=True, help="Remove .epbuild as well: all that epbuild remembers in the recipe's folder."
)
@click.option("--force", "-f", is_flag=True, help="Remove outputs that were changed since epbuild made them, too.")
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be removed, and remove nothing.")
@arguments.settings
def clean(recipe: Path, steps: tuple[str, ...], everything: bool, force: bool, dry_run: bool, settings: tuple[str, ...]) -> int:
    """Remove what the steps of RECIPE (epbuild.yaml) emitted, and forget that they were done.

    STEPS are globs over step ids, such as 'emit:decoder/*': only these. Files that epbuild did not make stay, and so do those that were
    changed since. The store keeps the results: the next run lays them out again without a compile.
    """
    if everything and steps:
        raise click.UsageError("--all goes with a whole recipe, not with STEPS")
    if everything:
        check_idle(recipe)
    found = []
    for cleaned in take_back(Request(recipe, steps, settings=settings), force=force, dry_run=dry_run):
        print_cleaned(cleaned, dry_run=dry_run)
        found.append(cleaned)
    forgotten = remove_workspace(recipe, dry_run=dry_run) if everything else None
    print_clean_sum(found, forgotten, recipe, dry_run=dry_run)
    return 0

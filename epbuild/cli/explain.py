"""`epbuild explain`: why a step would run, or why it would not."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.build import Request
from epbuild.build import explain as explained
from epbuild.cli import arguments
from epbuild.report import explanation_document, print_explanations, print_json


@click.command()
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
@arguments.recipe_option
@arguments.settings
@arguments.json
def explain(steps: tuple[str, ...], recipe: Path, settings: tuple[str, ...], json: bool) -> int:
    """Say why STEP would run, or why not: what has changed since it was last built here, from what to what.

    STEP is a step's id or a glob over ids, such as 'share:decoder/*'. Builds nothing and provisions nothing.
    """
    found = explained(Request(recipe, settings=settings), steps)
    if json:
        print_json(explanation_document(str(recipe), found))
    else:
        print_explanations(found)
    return 0

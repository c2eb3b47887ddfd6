"""`epbuild plan`: the steps, whether each is up to date, and why not."""

from __future__ import annotations

from pathlib import Path

import click

from epbuild.build import Request, survey
from epbuild.cli import arguments
from epbuild.report import plan_document, print_json, print_plan, tell_problems


@click.command()
@arguments.recipe
@arguments.steps
@arguments.locked
@arguments.settings
@arguments.json
def plan(recipe: Path, steps: tuple[str, ...], locked: bool, settings: tuple[str, ...], json: bool) -> int:
    """Show the steps of RECIPE (epbuild.yaml), the state of each, and why it would run.

    STEPS are globs over step ids, such as 'emit:decoder/*': only these, and what they need. Builds nothing and provisions nothing.
    """
    found = survey(Request(recipe, steps, settings=settings, locked=locked))
    if json:
        print_json(plan_document(str(recipe), found))
    else:
        tell_problems(found.plan.warnings, "warning")
        print_plan(found)
    return 0

"""`epbuild run`: make what is out of date."""

from __future__ import annotations

import os
from pathlib import Path

import click

from epbuild.build import Request, survey
from epbuild.build import run as build
from epbuild.cli import arguments
from epbuild.report import plan_document, print_json, print_plan, reporter


@click.command()
@arguments.recipe
@arguments.steps
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="How many actions may run at once; default: one per CPU.")
@click.option("--memory", type=arguments.SIZE, help="How much memory may be used at once, such as 8GB; default: all there is.")
@click.option("--keep-going", "-k", is_flag=True, help="After a failure, go on with what does not depend on it.")
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be made, and make nothing.")
@click.option("--check", is_flag=True, help="Make nothing; exit with 1 if anything is out of date.")
@click.option(
    "--rebuild-and-compare", is_flag=True, help="Then compile everything again in a fresh place, and compare the bytes."
)
@arguments.locked
@arguments.settings
@arguments.json
def run(
    recipe: Path,
    steps: tuple[str, ...],
    jobs: int | None,
    memory: int | None,
    keep_going: bool,
    dry_run: bool,
    check: bool,
    rebuild_and_compare: bool,
    locked: bool,
    settings: tuple[str, ...],
    json: bool,
) -> int:
    r"""Build what is out of date in RECIPE (epbuild.yaml): provision toolchains, compile, verify, lay the artifacts out.

    STEPS are globs over step ids, such as 'emit:decoder/*': only these, and what they need.

    \b
    Exit codes:
      0    everything is in place
      1    a step failed, --check found something out of date, or --rebuild-and-compare a difference that is not known
      2    the recipe or the command line is wrong
      3    the environment is: toolchain, device, permissions, disk
      130  interrupted; what was finished is kept
    """
    if rebuild_and_compare and (dry_run or check):
        raise click.UsageError("--rebuild-and-compare makes things; --dry-run and --check make nothing")
    request = Request(recipe, steps, jobs or os.cpu_count() or 1, keep_going, settings, memory, locked, rebuild_and_compare)
    if not dry_run and not check:
        with reporter(json=json) as listener:
            return build(request, listener)
    found = survey(request)
    if json:
        print_json(plan_document(str(recipe), found))
    else:
        print_plan(found, only_todo=True)
    return 1 if check and not found.up_to_date else 0

"""`epbuild log`: what the EP said while a step was compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from epbuild.build import Request, logged_steps, read_log, read_plan, workspace_of
from epbuild.cli import arguments
from epbuild.report import print_line
from epbuild.store import Workspace


@click.command()
@click.argument("step", required=False)
@arguments.recipe_option
def log(step: str | None, recipe: Path) -> int:
    """Print the log of STEP's last compile: everything that ONNX Runtime and the EP wrote, whether it failed or not.

    Without STEP, list the steps that have a log.
    """
    _, plan = read_plan(Request(recipe))
    with Workspace.open(workspace_of(recipe), create=False) as workspace:
        if step is None:
            for name in logged_steps(plan, workspace):
                print_line(name)
        else:
            for text in read_log(plan, step, workspace):
                sys.stdout.write(text)
    return 0

"""`epbuild log`: what the EP logged while a step was compiled."""

from __future__ import annotations

import sys
from io import IncrementalNewlineDecoder

from epbuild.cache.workspace import Workspace
from epbuild.cli import arguments
from epbuild.cli.usage import UsageError
from epbuild.commands.log import logged_steps, read_log
from epbuild.commands.planning import read_plan, remote_of, workspace_of
from epbuild.commands.request import RemoteChoice, Request
from epbuild.core.shown import visible_log
from epbuild.report.terminal.screen import print_line

app = arguments.application()


@app.command()
def log(names: arguments.NamesOfOne, recipe: arguments.RecipeOption = None) -> int:
    """Print the log of STEP's last compile: everything that ONNX Runtime and the EP wrote, whether it failed or not.

    Characters that a terminal would obey are spelled out. The file that a failure names has the log as it was written.

    Without STEP, list the steps that have a log.
    """
    file, steps, _ = arguments.named(names, recipe)
    if len(steps) > 1:
        raise UsageError(f"name one step, not {len(steps)}: {', '.join(steps)}")
    request = Request(file, remote=RemoteChoice())
    found, plan = read_plan(request)
    with Workspace.open(workspace_of(file), create=False) as workspace:
        if steps:
            ends = IncrementalNewlineDecoder(None, translate=True)
            for text in read_log(plan, steps[0], workspace, file, remote_of(request, found)):
                sys.stdout.write(visible_log(ends.decode(text)))
        else:
            for name in logged_steps(plan, workspace, file):
                print_line(name)
    return 0

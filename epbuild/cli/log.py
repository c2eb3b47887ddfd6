"""`epbuild log`: log of a step's last compile."""

from __future__ import annotations

import sys
from io import IncrementalNewlineDecoder

from epbuild.cache.workspace import Workspace
from epbuild.cli import arguments
from epbuild.cli.options import application
from epbuild.commands.log import logged_steps, read_log
from epbuild.core.shown import visible_log
from epbuild.report.terminal.screen import print_line
from epbuild.session.planning import read_plan, remote_of, workspace_of
from epbuild.session.request import RemoteChoice, Request

app = application()


@app.command(exits={0: "the log or the list was printed", 1: "the step has no log"})
def log(target: arguments.TargetStep) -> int:
    """Print the log of STEP's last compile, with all output of ONNX Runtime and the EP. Without STEP, list the steps that have a log.

    Control characters are escaped. The log file that a failure names has them unchanged.
    """
    recipe, steps, _ = target.selection()
    request = Request(recipe, remote=RemoteChoice())
    found, plan = read_plan(request)
    with Workspace.open(workspace_of(recipe), create=False) as workspace:
        if steps:
            ends = IncrementalNewlineDecoder(None, translate=True)
            for text in read_log(plan, steps[0], workspace, recipe, remote_of(request, found)):
                sys.stdout.write(visible_log(ends.decode(text)))
        else:
            for name in logged_steps(plan, workspace, recipe):
                print_line(name)
    return 0

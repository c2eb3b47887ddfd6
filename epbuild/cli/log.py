"""`epbuild log`: log of a step's last run."""

from __future__ import annotations

import sys
from io import IncrementalNewlineDecoder

from epbuild.cache.workspace import Workspace
from epbuild.cli import arguments
from epbuild.cli.options import make_application
from epbuild.commands.log import list_logged_steps, read_log
from epbuild.core.shown import escape_log
from epbuild.report.terminal.screen import print_line
from epbuild.session.planning import get_workspace_folder, read_plan, resolve_remote
from epbuild.session.request import RemoteChoice, Request

app = make_application()


@app.command(exits={0: "the log or the list was printed", 1: "the step has no log"})
def log(target: arguments.TargetStep) -> int:
    """Print the log of STEP's last run, with all output of ONNX Runtime and the EP. Without STEP, list the steps that have a log.

    Control characters are escaped. The error message of a failed step shows the path of the original log file.
    """
    recipe, steps, _ = target.selection()
    request = Request(recipe, remote=RemoteChoice())
    found, plan = read_plan(request)
    with Workspace.open(get_workspace_folder(recipe), create=False) as workspace:
        if steps:
            ends = IncrementalNewlineDecoder(None, translate=True)
            for text in read_log(plan, steps[0], workspace, recipe, resolve_remote(request, found)):
                sys.stdout.write(escape_log(ends.decode(text)))
        else:
            for name in list_logged_steps(plan, workspace, recipe):
                print_line(name)
    return 0

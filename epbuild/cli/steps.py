"""Commands on steps: `plan`, `explain` and `log`."""

from __future__ import annotations

import sys
from io import IncrementalNewlineDecoder
from typing import Annotated

from msgspec.structs import replace

from epbuild import api
from epbuild.cache.workspace import Workspace
from epbuild.cli import arguments
from epbuild.cli.job_options import Matrix, RunnerLabels, parse_labels
from epbuild.cli.options import declare_option, make_application
from epbuild.commands.log import list_logged_steps, read_log
from epbuild.commands.plan import explain as explained
from epbuild.core.shown import escape_log
from epbuild.report.json.build import build_explanation_document, build_plan_document, build_workloads_document, print_matrix
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.plan import print_defaults, print_explanations, print_plan, print_workloads
from epbuild.report.terminal.problems import print_warnings
from epbuild.report.terminal.screen import print_line
from epbuild.session.planning import get_workspace_folder, read_plan, resolve_remote
from epbuild.session.request import RemoteChoice, Request

app = make_application()


@app.command(exits={0: "the plan was shown, whether or not steps are out of date"})
def plan(
    target: arguments.Target,
    *,
    every_step: Annotated[bool, declare_option("--all", help="List current steps too, instead of only counting them.")] = False,
    locked: arguments.Locked = False,
    no_exec: arguments.NoExec = False,
    remote: arguments.RemoteReading,
    matrix: Matrix = None,
    runners: RunnerLabels,
    cluster: arguments.ClusterOfPlan,
    settings: arguments.Settings,
    all_warnings: arguments.AllWarnings = False,
    json: arguments.Json = False,
) -> int:
    """Show the steps of RECIPE that a build would run, their states, and the reasons to run them.

    Nothing is built and no toolchain is provisioned.
    """
    request = target.request(settings, locked=locked, remote=remote.choice)
    request = request.without_programs() if no_exec else request
    if matrix is not None:
        from epbuild.commands.workload import build_matrix  # Import here, because only CI needs it.

        with WaitingRow() as waiting:
            job_matrix = build_matrix(request, matrix, parse_labels(runners), waiting)
        print_warnings(job_matrix.warnings, all_warnings=all_warnings)
        print_matrix(job_matrix.jobs)
        return 0
    address = cluster.address_of(remote) if cluster.executor is not None else None
    with WaitingRow() as waiting:
        survey = api.plan(request, waiting)
    if address is not None:
        from epbuild.commands.workload import list_workloads

        loads = list_workloads(request, survey, address)
        if json:
            print_json(build_workloads_document(loads, address.text))
        else:
            print_workloads(loads)
        return 0
    if json:
        print_json(build_plan_document(str(request.recipe), survey))
    else:
        print_warnings(survey.plan.warnings, all_warnings=all_warnings)
        if request.is_whole:  # Defaults belong to a recipe, not to some of its steps.
            print_defaults(survey.plan.defaults)
        print_plan(survey, every_step=every_step)
    return 0


@app.command(exits={0: "the steps were explained"})
def explain(
    target: arguments.TargetSteps,
    *,
    no_exec: arguments.NoExec = False,
    remote: arguments.RemoteReading,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Explain why each STEP would run or not. Changed inputs are shown with their old and new values.

    Nothing is built and no toolchain is provisioned.
    """
    selected = target.request(settings, remote=remote.choice)
    request = replace(selected.without_programs() if no_exec else selected, selection=())
    with WaitingRow() as waiting:
        found = explained(request, selected.selection, waiting)
    if json:
        print_json(build_explanation_document(str(request.recipe), found))
    else:
        print_explanations(found)
    return 0


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

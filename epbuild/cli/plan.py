"""`epbuild plan`: the steps, whether each is up to date, and why not."""

from __future__ import annotations

from epbuild import api
from epbuild.cli import arguments, cluster_options, job_options, remote_options
from epbuild.commands.request import Request
from epbuild.report.json.documents import plan_document, print_json, print_matrix
from epbuild.report.terminal.cluster import print_workloads
from epbuild.report.terminal.plan import print_plan
from epbuild.report.terminal.problems import print_warnings
from epbuild.report.terminal.waiting import WaitingRow

app = arguments.application()


@app.command()
def plan(
    names: arguments.Names,
    *,
    recipe: arguments.RecipeOption = None,
    locked: arguments.Locked = False,
    no_exec: arguments.NoExec = False,
    remote_cache: remote_options.RemoteCacheReading = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    matrix: job_options.Matrix = None,
    runners: job_options.RunnerLabels,
    executor: cluster_options.ExecutorOfPlan = None,
    tls: cluster_options.Certificates = None,
    settings: arguments.Settings,
    all_warnings: arguments.AllWarnings = False,
    json: arguments.Json = False,
) -> int:
    """Show the steps of RECIPE, the state of each, and why it would run.

    Builds nothing and provisions nothing.
    """
    file, steps, places = arguments.named(names, recipe)
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    request = Request(file, steps, settings=tuple(settings), locked=locked, remote=remote, places=places)
    request = request.without_programs() if no_exec else request
    if matrix is not None:
        from epbuild.commands.jobs import matrix_of  # only CI asks for it

        with WaitingRow() as waiting:
            made = matrix_of(request, matrix, job_options.labels_of(runners), waiting)
        print_warnings(made.warnings, all_warnings=all_warnings)
        print_matrix(made.jobs)
        return 0
    cluster = None if offline or executor is None else cluster_options.cluster(executor, tls, insecure=insecure)
    with WaitingRow() as waiting:
        found = api.plan(request, waiting)
    if cluster is not None:
        from epbuild.commands.workload import workloads

        print_workloads(workloads(request, found, cluster), cluster.text, json=json)
        return 0
    if json:
        print_json(plan_document(str(file), found))
    else:
        print_warnings(found.plan.warnings, all_warnings=all_warnings)
        print_plan(found)
    return 0

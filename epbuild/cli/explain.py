"""`epbuild explain`: reasons why a step would run, or would not."""

from __future__ import annotations

from epbuild.cli import arguments
from epbuild.cli.options import make_application
from epbuild.commands.explain import explain as explained
from epbuild.report.json.build import build_explanation_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.plan import print_explanations
from epbuild.session.request import Request

app = make_application()


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
    recipe, steps, places = target.selection()
    request = Request(recipe, settings=tuple(settings), places=places, remote=remote.choice)
    with WaitingRow() as waiting:
        found = explained(request.without_programs() if no_exec else request, steps, waiting)
    if json:
        print_json(build_explanation_document(str(recipe), found))
    else:
        print_explanations(found)
    return 0

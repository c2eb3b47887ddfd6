"""`epbuild explain`: why a step would run, or why it would not."""

from __future__ import annotations

from epbuild.cli import arguments, remote_options
from epbuild.commands.explain import explain as explained
from epbuild.commands.request import Request
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.explain import explanation_document, print_explanations
from epbuild.report.terminal.waiting import WaitingRow

app = arguments.application()


@app.command()
def explain(
    names: arguments.NeededNames,
    *,
    recipe: arguments.RecipeOption = None,
    no_exec: arguments.NoExec = False,
    remote_cache: remote_options.RemoteCacheReading = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show why STEP would run, or why not: what has changed since it was last built here, from what to what.

    Builds nothing and provisions nothing.
    """
    file, steps, places = arguments.named(names, recipe)
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    request = Request(file, settings=tuple(settings), places=places, remote=remote)
    with WaitingRow() as waiting:
        found = explained(request.without_programs() if no_exec else request, arguments.needed(steps, file), waiting)
    if json:
        print_json(explanation_document(str(file), found))
    else:
        print_explanations(found)
    return 0

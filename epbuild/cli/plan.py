"""`epbuild plan`: the steps, whether each is up to date, and why not."""

from __future__ import annotations

from epbuild.cli import arguments, remote_options
from epbuild.commands.plan import survey
from epbuild.commands.planning import Request
from epbuild.report.documents import plan_document, print_json
from epbuild.report.problems import print_problems
from epbuild.report.text import print_plan

app = arguments.application()


@app.command()
def plan(
    names: arguments.Names,
    *,
    recipe: arguments.RecipeOption = None,
    locked: arguments.Locked = False,
    remote_cache: remote_options.RemoteCacheReading = "read",
    offline: remote_options.Offline = False,
    insecure: remote_options.Insecure = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show the steps of RECIPE, the state of each, and why it would run.

    Builds nothing and provisions nothing.
    """
    file, steps, places = arguments.named(names, recipe)
    remote = remote_options.remote_choice(remote_cache, offline=offline, insecure=insecure)
    found = survey(Request(file, steps, settings=tuple(settings), locked=locked, remote=remote, places=places))
    if json:
        print_json(plan_document(str(file), found))
    else:
        print_problems(found.plan.warnings, "warning")
        print_plan(found)
    return 0

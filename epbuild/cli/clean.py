"""`epbuild clean`: remove emitted outputs."""

from __future__ import annotations

from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.options import UsageError, declare_option, make_application
from epbuild.commands.clean import check_idle, remove_workspace
from epbuild.commands.clean import clean as take_back
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.store import print_clean_sum, print_cleaned
from epbuild.session.request import Request

app = make_application()


@app.command(exits={0: "the outputs were removed, or there were none"})
def clean(
    target: arguments.Target,
    *,
    everything: Annotated[
        bool, declare_option("--all", help="Also remove the folder .epbuild with state, logs and reports.")
    ] = False,
    force: Annotated[
        bool, declare_option("--force", "-f", help="Also remove files that were changed after epbuild wrote them.")
    ] = False,
    dry_run: arguments.DryRun = False,
    settings: arguments.Settings,
) -> int:
    """Remove the outputs that steps of RECIPE emitted.

    Files that epbuild did not write, and files that changed after epbuild wrote them, are kept. The results stay in the
    store: the next run emits the outputs again without compiling.
    """
    recipe, steps, places = target.selection()
    if everything and steps:
        raise UsageError("--all applies to a whole recipe and cannot be combined with steps")
    if everything:
        check_idle(recipe)
    found = []
    request = Request(recipe, steps, settings=tuple(settings), places=places)
    with WaitingRow() as waiting:
        for cleaned in take_back(request, waiting, force=force, dry_run=dry_run):
            print_cleaned(cleaned, dry_run=dry_run)
            found.append(cleaned)
    forgotten = remove_workspace(recipe, dry_run=dry_run) if everything else None
    print_clean_sum(found, forgotten, recipe, dry_run=dry_run)
    return 0

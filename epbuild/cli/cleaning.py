"""Commands that remove files: `clean` and `gc`."""

from __future__ import annotations

from typing import Annotated

from epbuild.cache.collect import Limits
from epbuild.cache.location import find_cache_directory
from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, UsageError, declare_option, make_application
from epbuild.commands.clean import check_idle, remove_workspace
from epbuild.commands.clean import clean as take_back
from epbuild.commands.gc import collect_garbage
from epbuild.report.json.documents import print_json
from epbuild.report.json.store import build_collection_document
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.store import print_clean_sum, print_cleaned, print_collection

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
    request = target.request(settings)
    if everything and request.selection:
        raise UsageError("--all applies to a whole recipe and cannot be combined with steps")
    if everything:
        check_idle(request.recipe)
    found = []
    with WaitingRow() as waiting:
        for cleaned in take_back(request, waiting, force=force, dry_run=dry_run):
            print_cleaned(cleaned, dry_run=dry_run)
            found.append(cleaned)
    forgotten = remove_workspace(request.recipe, dry_run=dry_run) if everything else None
    print_clean_sum(found, forgotten, request.recipe, dry_run=dry_run)
    return 0


_MAX_AGE = "30d"


@app.command(
    exits={0: "the store was cleaned, or there was nothing to remove", 2: COMMAND_LINE, 3: "the store cannot be read or changed"}
)
def gc(
    max_size: Annotated[
        int | None,
        declare_option(
            "--max-size",
            parser=arguments.size,
            metavar="SIZE",
            help="Also remove newer results that no workspace needs, until the store takes at most SIZE, such as 20GB.",
        ),
    ] = None,
    max_age: Annotated[
        int | None,
        declare_option(
            "--max-age",
            parser=arguments.age,
            metavar="TIME",
            help="Remove results that no workspace needs and that were not used for TIME.",
            default=_MAX_AGE,
        ),
    ] = None,
    dry_run: arguments.DryRun = False,
    json: arguments.Json = False,
) -> int:
    """Remove results from the store that no workspace needs, the least recently used first.

    All workspaces of a user share the store. Results of their last builds and toolchains are kept. Builds can run at the same
    time, because results used within the last hour are also kept. Removed results can be built again.
    """
    place, limits = find_cache_directory(), Limits(arguments.age(_MAX_AGE) if max_age is None else max_age, max_size)
    found = collect_garbage(place, limits, dry_run=dry_run)
    if json:
        print_json(build_collection_document(place, found, limits, dry_run=dry_run))
    else:
        print_collection(place, found, limits, dry_run=dry_run)
    return 0

"""`epbuild gc`: make the store smaller."""

from __future__ import annotations

from typing import Annotated

from epbuild.cache.collect import Limits
from epbuild.cache.location import cache_directory
from epbuild.cli import arguments
from epbuild.cli.options import application, option
from epbuild.commands.gc import collect_garbage
from epbuild.report.json.documents import print_json
from epbuild.report.json.store import collection_document
from epbuild.report.terminal.store import print_collection

_MAX_AGE = "30d"

app = application()


@app.command()
def gc(
    max_size: Annotated[
        int | None,
        option(
            "--max-size",
            parser=arguments.size,
            metavar="SIZE",
            help="Remove more, until the store has at most SIZE, such as 20GB.",
        ),
    ] = None,
    max_age: Annotated[
        int | None,
        option(
            "--max-age",
            parser=arguments.age,
            metavar="TIME",
            help=f"Remove what nothing needs and nobody used for TIME; default: {_MAX_AGE}.",
        ),
    ] = None,
    dry_run: arguments.DryRun = False,
    json: arguments.Json = False,
) -> int:
    """Remove from the store what no build needs, the longest unused first.

    The store is shared by all workspaces of this user. What they built last, and still have in place, is never removed, nor what anyone
    used within the last hour: this is safe beside builds that are running. What is removed can be made again. Toolchains stay.
    """
    place, limits = cache_directory(), Limits(arguments.age(_MAX_AGE) if max_age is None else max_age, max_size)
    found = collect_garbage(place, limits, dry_run=dry_run)
    if json:
        print_json(collection_document(place, found, limits, dry_run=dry_run))
    else:
        print_collection(place, found, limits, dry_run=dry_run)
    return 0

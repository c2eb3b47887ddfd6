"""`epbuild lock`: exact toolchains and remote models of a recipe."""

from __future__ import annotations

from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.options import application, option, options
from epbuild.commands.lock import Upgrade, export_lock, make_lock, write_lock
from epbuild.engine.events import EventList, Warned
from epbuild.report.json.build import lock_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.progress import reporter
from epbuild.report.terminal.recipes import print_lock
from epbuild.session.request import Request

app = application()


@app.command()
def lock(
    recipe: arguments.Recipe = arguments.DEFAULT,
    *,
    check: Annotated[bool, option("--check", help="Write nothing; exit with 1 if the lock is not up to date.")] = False,
    upgrade: Annotated[
        bool,
        option("--upgrade", "-U", help="Take the newest versions that do, instead of those of the lock that is there."),
    ] = False,
    upgraded: Annotated[list[str], options("--upgrade-package", "-P", metavar="NAME", help="The same for one package.")],
    export: Annotated[
        bool, option("--export", help="Also write a pylock.NAME.toml (PEP 751) for each toolchain, beside the lock.")
    ] = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Write the lock of RECIPE beside it (epbuild.lock).

    It has every package of every toolchain, with version and digests, for the platforms that the toolchain names; the digests of all remote
    models, and of the wheels that they are taken from; and the catalog's revision. Builds use it from then on. What is locked already stays
    as it is, as long as the recipe allows.
    """
    events = EventList()
    request, upgrades = Request(recipe, settings=tuple(settings)), Upgrade(tuple(upgraded), upgrade)
    if json:
        locking = make_lock(request, events, upgrades)
    else:
        with reporter(json=False) as progress:
            locking = make_lock(request, progress, upgrades)
    written = not check and not locking.is_written
    if written:
        write_lock(locking)
    exported = export_lock(locking) if export and not check else {}
    if json:
        warnings = [event.problem for event in events if isinstance(event, Warned)]
        print_json(lock_document(locking, warnings, exported, written=written))
    else:
        print_lock(locking, exported, written=written)
    return 1 if check and not locking.is_written else 0

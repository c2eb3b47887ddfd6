"""`epbuild lock`: exact toolchains and remote models of a recipe."""

from __future__ import annotations

from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.options import MACHINE, declare_option, declare_options, make_application
from epbuild.commands.lock import Upgrade, export_lock, make_lock, write_lock
from epbuild.engine.events import EventList, Warned
from epbuild.report.json.build import build_lock_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.progress import make_reporter
from epbuild.report.terminal.recipes import print_lock
from epbuild.session.request import Request

app = make_application()


@app.command(
    exits={
        0: "the lock is up to date, or was written",
        1: "--check found that the lock is out of date",
        3: f"{MACHINE}, or a package index or a model cannot be reached",
    }
)
def lock(
    recipe: arguments.Recipe = arguments.DEFAULT,
    *,
    check: Annotated[bool, declare_option("--check", help="Write nothing; exit with 1 if the lock is out of date.")] = False,
    upgrade: Annotated[
        bool,
        declare_option("--upgrade", "-U", help="Use the newest allowed versions instead of the versions in the existing lock."),
    ] = False,
    upgraded: Annotated[
        list[str],
        declare_options("--upgrade-package", "-P", metavar="NAME", help="Upgrade only this package. Can be given several times."),
    ],
    export: Annotated[
        bool, declare_option("--export", help="Also write a pylock.NAME.toml (PEP 751) for each toolchain, next to the lock.")
    ] = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Write epbuild.lock next to RECIPE. Later builds use its versions and digests.

    The lock contains all packages of all toolchains for each of their platforms, the digests of remote models and of wheels that contain
    models, and the revision of the catalog. Existing entries are kept as long as the recipe allows them.
    """
    events = EventList()
    request, upgrades = Request(recipe, settings=tuple(settings)), Upgrade(tuple(upgraded), upgrade)
    if json:
        locking = make_lock(request, events, upgrades)
    else:
        with make_reporter(json=False) as progress:
            locking = make_lock(request, progress, upgrades)
    written = not check and not locking.is_written
    if written:
        write_lock(locking)
    exported = export_lock(locking) if export and not check else {}
    if json:
        warnings = [event.problem for event in events if isinstance(event, Warned)]
        print_json(build_lock_document(locking, warnings, exported, written=written))
    else:
        print_lock(locking, exported, written=written)
    return 1 if check and not locking.is_written else 0

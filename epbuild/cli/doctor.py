"""`epbuild doctor` and `devices`: this machine and its EPs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from epbuild import __version__
from epbuild.catalog.catalog import entries_for, get_full_name, known_eps
from epbuild.cli import arguments
from epbuild.cli.options import COMMAND_LINE, Excludes, UsageError, declare_option, make_application
from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.doctor import DoctorRequest, check_devices, run_checks
from epbuild.core.errors import EpbuildError
from epbuild.report.json.checks import build_devices_document, build_health_document, build_known_names_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import show_activity
from epbuild.report.terminal.checks import HealthPrinter, print_devices, print_known_names

app = make_application()

RecipeIfAny = Annotated[Path | None, arguments.declare_recipe_argument("Recipe to check.", f"{arguments.DEFAULT}, if it exists")]
EXITS = {
    0: "builds can work on this machine; there may be warnings",
    1: "a check of this machine or of the recipe failed",
    2: COMMAND_LINE,
}
NoCompile = Annotated[bool, declare_option("--no-compile", help="Compile no test models; only list devices.")]
_EP = ("--ep",)


def find_recipe(recipe: Path | None) -> Path | None:
    """Return the recipe of the command line, or else the default recipe if it exists, or else None."""
    return recipe if recipe is not None or not arguments.DEFAULT.exists() else arguments.DEFAULT


@app.command(exits=EXITS)
def doctor(
    recipe: RecipeIfAny = None,
    *,
    no_compile: NoCompile = False,
    offline: arguments.Offline = False,
    cluster: arguments.Cluster,
    insecure: Annotated[
        bool, declare_option("--insecure", help="Allow a scheduler or a remote cache on another machine without TLS.")
    ] = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Check whether builds can work on this machine, and show how to fix problems.

    The checks cover Python, uv, disks, caches, toolchains and their EPs, the remote cache, and the cluster. Each EP compiles a
    small test model, which is then deleted.
    """
    scheduler: ClusterAddress | EpbuildError | None
    try:
        scheduler = cluster.address(insecure=insecure)
    except EpbuildError as error:
        scheduler = error
    file = find_recipe(recipe)
    request = DoctorRequest(
        file,
        tuple(settings),
        attempts=not no_compile,
        offline=offline,
        insecure=insecure,
        cluster=None if offline else scheduler,
    )
    if json:
        found = run_checks(request, lambda result: None)
        print_json(build_health_document(found))
    else:
        printer = HealthPrinter()
        printer.print_title(f"epbuild {__version__}")
        found = run_checks(request, printer.print_check)
        printer.print_sum(found)
    return 0 if found.is_healthy else 1


@app.command(
    exits=EXITS,
    rules=[
        Excludes(_EP, ("recipe", "--no-compile", "--set"), "--ep reads the catalog only; omit RECIPE, --no-compile and --set")
    ],
)
def devices(
    recipe: RecipeIfAny = None,
    *,
    ep: Annotated[
        str | None, declare_option(*_EP, metavar="EP", help="List what this EP can compile for, such as SoCs. Checks nothing.")
    ] = None,
    no_compile: NoCompile = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show the EPs of the recipe's toolchains with their devices. Without a recipe, show the newest toolchains on this machine.

    Each EP compiles and loads a small model in its own process. Nothing is installed.
    """
    if ep is not None:
        name = ep if ep in known_eps() else get_full_name(ep.lower())
        if name is None:
            raise UsageError(f"the catalog has no EP '{ep}'; it has {', '.join(known_eps())}")
        if json:
            print_json(build_known_names_document(name, entries_for(name)))
        else:
            print_known_names(name, entries_for(name))
        return 0
    request = DoctorRequest(find_recipe(recipe), tuple(settings), attempts=not no_compile)
    with show_activity("toolchains", "loading each EP" if no_compile else "compiling a small model with each EP"):
        found = check_devices(request)
    if json:
        print_json(build_devices_document(found))
    else:
        print_devices(found)
    return 0 if found.is_healthy else 1

"""`epbuild doctor` and `epbuild devices`: check this machine and its EPs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from epbuild import __version__
from epbuild.cli import arguments, completion
from epbuild.cli.options import COMMAND_LINE, declare_option, make_application, with_default
from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.doctor import Diagnoses, DoctorRequest, HealthListener, check_devices, run_checks
from epbuild.core.errors import EpbuildError
from epbuild.report.json.checks import build_devices_document, build_health_document
from epbuild.report.json.documents import Document, print_json
from epbuild.report.terminal.checks import HealthPrinter

app = make_application()

RecipeIfAny = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RECIPE]",
        help=with_default("Recipe to check.", f"{arguments.DEFAULT}, if it exists"),
        show_default=False,
        autocompletion=completion.complete_recipes,
    ),
]
EXITS = {
    0: "builds can work on this machine; there may be warnings",
    1: "a check of this machine or of the recipe failed",
    2: COMMAND_LINE,
}
NoCompile = Annotated[bool, declare_option("--no-compile", help="Compile no test models; only list devices.")]

Check = Callable[[DoctorRequest, HealthListener], Diagnoses]
"""Function that runs some or all checks of this machine."""


def find_recipe(recipe: Path | None) -> Path | None:
    """Return the recipe of the command line, or else the default recipe if it exists, or else None."""
    return recipe if recipe is not None or not arguments.DEFAULT.exists() else arguments.DEFAULT


def show_health(check: Check, request: DoctorRequest, document: Callable[[Diagnoses], Document] | None) -> int:
    """Run `check` and print its results: as the JSON that `document` builds, or as lines if `document` is None. Return the exit code."""
    if document is not None:
        found = check(request, lambda result: None)
        print_json(document(found))
    else:
        printer = HealthPrinter(f"epbuild {__version__}")
        found = check(request, printer.print_check)
        printer.print_sum(found)
    return 0 if found.is_healthy else 1


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
    return show_health(run_checks, request, build_health_document if json else None)


@app.command(exits=EXITS)
def devices(
    recipe: RecipeIfAny = None,
    *,
    no_compile: NoCompile = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show the EPs of the recipe's toolchains with their devices. Without a recipe, show the newest toolchains on this machine.

    Each EP compiles and loads a small model in its own process. Nothing is installed.
    """
    request = DoctorRequest(find_recipe(recipe), tuple(settings), attempts=not no_compile)
    return show_health(check_devices, request, build_devices_document if json else None)

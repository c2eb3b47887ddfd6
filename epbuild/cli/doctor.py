"""`epbuild doctor`: check this machine for problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from epbuild import __version__
from epbuild.cli import arguments, completion
from epbuild.cli.options import application, option
from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.doctor import Diagnoses, DoctorRequest, HealthListener, examine
from epbuild.core.errors import EpbuildError
from epbuild.report.json.checks import health_document
from epbuild.report.json.documents import Document, print_json
from epbuild.report.terminal.checks import HealthPrinter

app = application()

RecipeIfAny = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RECIPE]",
        help=f"The recipe to look at as well; default: {arguments.DEFAULT}, if it is there.",
        show_default=False,
        autocompletion=completion.recipes,
    ),
]
NoCompile = Annotated[bool, option("--no-compile", help="Compile nothing: list devices only.")]

Check = Callable[[DoctorRequest, HealthListener], Diagnoses]
"""Function that checks a machine, or a part of it."""


def recipe_if_any(recipe: Path | None) -> Path | None:
    """Return the recipe of the command line, or else the one in this folder, if there is one."""
    return recipe if recipe is not None or not arguments.DEFAULT.exists() else arguments.DEFAULT


def show_health(check: Check, request: DoctorRequest, document: Callable[[Diagnoses], Document] | None) -> int:
    """Run `check` and show its results, as JSON if there is a `document`, else line by line. Return the exit code."""
    if document is not None:
        found = check(request, lambda result: None)
        print_json(document(found))
    else:
        printer = HealthPrinter(f"epbuild {__version__}")
        found = check(request, printer.print_check)
        printer.print_sum(found)
    return 0 if found.is_healthy else 1


@app.command()
def doctor(
    recipe: RecipeIfAny = None,
    *,
    no_compile: NoCompile = False,
    offline: arguments.Offline = False,
    cluster: arguments.Cluster,
    insecure: Annotated[bool, option("--insecure", help="Allow a scheduler or a cache on another machine without TLS.")] = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Look whether builds can work on this machine, and show what to mend.

    Python, uv, disk, caches, toolchains and what their EPs can do here, the remote cache, the cluster. Makes nothing but small models that
    it compiles and forgets. Exit code 0: builds can work; 1: something must be mended.
    """
    scheduler: ClusterAddress | EpbuildError | None
    try:
        scheduler = cluster.address(insecure=insecure)
    except EpbuildError as error:
        scheduler = error
    file = recipe_if_any(recipe)
    request = DoctorRequest(
        file,
        tuple(settings),
        attempts=not no_compile,
        offline=offline,
        insecure=insecure,
        cluster=None if offline else scheduler,
    )
    return show_health(examine, request, health_document if json else None)

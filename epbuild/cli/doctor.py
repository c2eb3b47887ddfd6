"""`epbuild doctor`: whether builds can work on this machine, and what to mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from epbuild import __version__
from epbuild.cli import arguments, cluster_options, completion, remote_options
from epbuild.cluster.address import ClusterAddress
from epbuild.commands.doctor.doctor import Diagnoses, DoctorRequest, HealthListener, examine
from epbuild.core.errors import EpbuildError
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.doctor import HealthPrinter, health_document

app = arguments.application()

RecipeIfAny = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RECIPE]",
        help=f"The recipe to look at as well; default: {arguments.DEFAULT}, if it is there.",
        show_default=False,
        autocompletion=completion.recipes,
    ),
]
NoCompile = Annotated[bool, arguments.option("--no-compile", help="Compile nothing: list devices only.")]

Look = Callable[[DoctorRequest, HealthListener], Diagnoses]
"""What looks at the health of a machine, or at a part of it."""


def recipe_if_any(recipe: Path | None) -> Path | None:
    """The recipe that is named, else the one in this folder, if there is one."""
    return recipe if recipe is not None or not arguments.DEFAULT.exists() else arguments.DEFAULT


def show_health(look: Look, request: DoctorRequest, document: Callable[[Diagnoses], dict[str, Any]] | None) -> int:
    """Show what `look` finds: as its JSON `document`, or, without one, line by line as it comes; returns the exit code."""
    if document is not None:
        found = look(request, lambda check: None)
        print_json(document(found))
    else:
        printer = HealthPrinter(f"epbuild {__version__}")
        found = look(request, printer.print_check)
        printer.print_sum(found)
    return 0 if found.is_healthy else 1


@app.command()
def doctor(
    recipe: RecipeIfAny = None,
    *,
    no_compile: NoCompile = False,
    offline: remote_options.Offline = False,
    executor: cluster_options.Executor = None,
    tls: cluster_options.Certificates = None,
    insecure: cluster_options.Insecure = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Look whether builds can work on this machine, and show what to mend.

    Python, uv, disk, caches, toolchains and what their EPs can do here, the remote cache, the cluster. Makes nothing but small models that
    it compiles and forgets. Exit code 0: builds can work; 1: something must be mended.
    """
    cluster: ClusterAddress | EpbuildError | None
    try:
        cluster = cluster_options.cluster(executor, tls, insecure=insecure)
    except EpbuildError as error:
        cluster = error
    file = recipe_if_any(recipe)
    request = DoctorRequest(
        file,
        tuple(settings),
        attempts=not no_compile,
        offline=offline,
        insecure=insecure,
        cluster=None if offline else cluster,
    )
    return show_health(examine, request, health_document if json else None)

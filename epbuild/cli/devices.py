"""`epbuild devices`: EPs of toolchains, their devices, what each can do here."""

from __future__ import annotations

from epbuild import __version__
from epbuild.cli import arguments
from epbuild.cli.doctor import NoCompile, RecipeIfAny, recipe_if_any
from epbuild.commands.doctor.doctor import DoctorRequest, devices_of
from epbuild.report.documents import print_json
from epbuild.report.health import devices_document, print_health

app = arguments.application()


@app.command()
def devices(
    recipe: RecipeIfAny = None,
    *,
    no_compile: NoCompile = False,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Show the EPs of the recipe's toolchains, or of those that are here: their devices, and what each can do.

    Installs nothing. Each EP compiles a small model, in a process of its own, and opens it. Exit codes are those of `epbuild doctor`.
    """
    found = devices_of(DoctorRequest(recipe_if_any(recipe), tuple(settings), attempts=not no_compile))
    if json:
        print_json(devices_document(found))
    else:
        print_health(found, title=f"epbuild {__version__}")
    return 0 if found.is_healthy else 1

"""`epbuild devices`: EPs of toolchains, their devices, what each can do here."""

from __future__ import annotations

from epbuild import __version__
from epbuild.cli import arguments
from epbuild.cli.doctor import NoCompile, RecipeIfAny, recipe_if_any
from epbuild.commands.doctor.doctor import DoctorRequest, devices_of
from epbuild.report.documents import print_json
from epbuild.report.health import HealthPrinter, devices_document

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
    request = DoctorRequest(recipe_if_any(recipe), tuple(settings), attempts=not no_compile)
    if json:
        found = devices_of(request, lambda check: None)
        print_json(devices_document(found))
    else:
        printer = HealthPrinter(f"epbuild {__version__}")
        found = devices_of(request, printer.print_check)
        printer.print_sum(found)
    return 0 if found.is_healthy else 1

"""`epbuild devices`: EPs of toolchains, their devices and abilities."""

from __future__ import annotations

from epbuild.cli import arguments
from epbuild.cli.doctor import EXITS, NoCompile, RecipeIfAny, find_recipe, show_health
from epbuild.cli.options import make_application
from epbuild.commands.doctor.doctor import DoctorRequest, check_devices
from epbuild.report.json.checks import build_devices_document

app = make_application()


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

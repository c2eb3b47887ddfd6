"""`epbuild import`: recipe from the configuration of another tool."""

from __future__ import annotations

from typing import Annotated

import typer

from epbuild.cli import arguments
from epbuild.cli.options import declare_option, make_application
from epbuild.commands.importing.importing import ImportRequest, import_recipe
from epbuild.commands.init.answers import name_targets
from epbuild.report.json.build import build_imported_document
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.recipes import print_imported

app = make_application()


@app.command(
    name="import", exits={0: "the recipe was written", 2: "the source cannot be converted, or the command line is invalid"}
)
def import_(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | -- COMMAND...",
            help="An Olive (.json, .yaml) or winml (.json) configuration file, or -- and an ep_weight_sharing_ctx_gen command line.",
            show_default=False,
        ),
    ],
    *,
    models: Annotated[
        list[str],
        arguments.declare_models("ONNX model to compile instead of the models in FILE or COMMAND"),
    ],
    targets: Annotated[
        list[str],
        arguments.declare_targets("Target to compile for instead of the targets in FILE or COMMAND"),
    ],
    ep: Annotated[
        str | None,
        declare_option("--ep", metavar="EP", help="EP to compile for, if the configuration of winml does not name one."),
    ] = None,
    name: arguments.NewName = None,
    output: arguments.NewRecipe = arguments.DEFAULT,
    force: arguments.Force = False,
    json: arguments.Json = False,
) -> int:
    """Convert the configuration of another tool to a recipe, and list settings that have no equivalent.

    The recipe is written only if it can be built. An existing file is overwritten only with --force.
    """
    done = import_recipe(ImportRequest(tuple(source), output, tuple(models), name_targets(targets), ep, name, force))
    if json:
        print_json(build_imported_document(done))
    else:
        print_imported(done)
    return 0

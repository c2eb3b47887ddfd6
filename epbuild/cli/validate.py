"""`epbuild validate`: report every mistake in a recipe without building it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from epbuild.cli import arguments
from epbuild.cli.build_files import Sarif, refuse_recipe
from epbuild.cli.options import Excludes, UsageError, declare_option, make_application
from epbuild.commands.validate import validate as check
from epbuild.core.errors import EpbuildError
from epbuild.core.units import format_count
from epbuild.report.ci.sarif import SarifDocument
from epbuild.report.formatting import join_names
from epbuild.report.json.build import ValidationDocument
from epbuild.report.json.documents import build_problem_views, print_json
from epbuild.report.listeners import write_document
from epbuild.report.terminal.problems import print_warnings
from epbuild.report.terminal.screen import print_line, print_lines, wrap
from epbuild.session.request import Request

app = make_application()
_MAX_NAMED = 5
_RULES = (Excludes(("--explain",), ("--json",), "--explain and --json cannot be combined"),)


@app.command(
    rules=_RULES, exits={0: "the recipe can be built; there may be warnings", 2: "the recipe or the command line is invalid"}
)
def validate(
    recipes: arguments.Recipes,
    *,
    settings: arguments.Settings,
    sarif: Sarif = None,
    explain: Annotated[bool, declare_option("--explain", help="Print the recipe as YAML with all defaults.")] = False,
    all_warnings: arguments.AllWarnings = False,
    json: arguments.Json = False,
) -> int:
    """Check RECIPE and its models without building. All errors are reported at once, with file, line and column.

    Notes list steps that can be built only on other machines. The output of --explain is a valid recipe. If it is saved in the
    folder of RECIPE, it has the same plan as RECIPE.
    """
    if len(recipes) < 2:
        recipe = recipes[0] if recipes else arguments.DEFAULT
        code = _validate(recipe, tuple(settings), sarif, json=json, all_warnings=all_warnings, quiet=explain)
        if explain:
            from epbuild.recipe.explained import explain as explain_recipe  # Import here, because few users need it.

            sys.stdout.write(explain_recipe(recipe, settings=settings))
        return code
    if json or explain or sarif is not None:
        raise UsageError("--json, --explain and --sarif accept only one recipe")
    errors: list[EpbuildError] = []
    for recipe in recipes:
        try:
            _validate(recipe, tuple(settings), None, json=False, all_warnings=all_warnings)
        except EpbuildError as error:
            errors.append(error)
    if errors:
        worst = max(errors, key=lambda error: error.exit_code)
        raise type(worst)(*(problem for error in errors for problem in error.problems))
    return 0


def _validate(
    recipe: Path, settings: tuple[str, ...], sarif: Path | None, *, json: bool, all_warnings: bool, quiet: bool = False
) -> int:
    refuse_recipe(recipe, sarif)
    try:
        found = check(Request(recipe, settings=settings))
    except EpbuildError as error:
        if sarif is not None:
            write_document(sarif, SarifDocument(recipe).text(error))
        if not json:
            raise
        print_json(ValidationDocument(recipe=str(recipe), valid=False, problems=build_problem_views(error.problems)))
        return error.exit_code
    if sarif is not None:
        document = SarifDocument(recipe)
        document.add("warning", found.warnings)
        document.add("note", found.notes)
        write_document(sarif, document.text(None))
    if json:
        warnings, here = map(build_problem_views, (found.warnings, found.notes))
        print_json(ValidationDocument(recipe=str(recipe), valid=True, warnings=warnings, notes=here, unread=tuple(found.unread)))
        return 0
    print_warnings(found.warnings, all_warnings=all_warnings)
    print_warnings(found.notes, "note", all_warnings=all_warnings)
    if not quiet:
        print_line(f"{recipe} is valid: " + ", ".join(format_count(count, noun) for noun, count in found.counts.items()))
        if found.unread:
            count, names = format_count(len(found.unread), "model"), join_names(found.unread, _MAX_NAMED)
            were = "was not checked, because it has" if len(found.unread) == 1 else "were not checked, because they have"
            print_lines(
                wrap(f"{count} {were} not been fetched or made yet: {names}. `epbuild run` checks every model.", others="  ")
            )
    return 0

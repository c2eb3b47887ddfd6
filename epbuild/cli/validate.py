"""`epbuild validate`: every mistake of a recipe, at once, without building anything."""

from __future__ import annotations

from epbuild.build import Request, read_plan
from epbuild.cli import arguments
from epbuild.errors import EpbuildError
from epbuild.report import print_json, print_line, problem_document, tell_problems
from epbuild.units import counted

_FORMAT = 1


app = arguments.application()


@app.command()
def validate(recipe: arguments.Recipe = arguments.DEFAULT, *, settings: arguments.Settings, json: arguments.Json = False) -> int:
    """Check RECIPE and the models that it names; build nothing.

    Every mistake is told at once, with its file, line and column. Exit code 0: it can be built. 2: it cannot.
    """
    try:
        loaded, plan = read_plan(Request(recipe, settings=tuple(settings)))
    except EpbuildError as error:
        if not json:
            raise
        problems = [problem_document(problem) for problem in error.problems]
        print_json({"format": _FORMAT, "recipe": str(recipe), "valid": False, "problems": problems, "warnings": []})
        return error.exit_code
    if json:
        warnings = [problem_document(problem) for problem in plan.warnings]
        print_json({"format": _FORMAT, "recipe": str(recipe), "valid": True, "problems": [], "warnings": warnings})
        return 0
    tell_problems(plan.warnings, "warning")
    counts = {"model": loaded.models, "target": loaded.targets, "group": loaded.groups, "step": plan.steps}
    print_line(f"{recipe} is valid: " + ", ".join(counted(len(things), noun) for noun, things in counts.items()))
    return 0

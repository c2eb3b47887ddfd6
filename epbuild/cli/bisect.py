"""`epbuild bisect`: find the part of a model that is at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from epbuild.catalog.facts import Thresholds
from epbuild.cli import arguments
from epbuild.cli.options import Excludes, OptionGroup, UsageError, declare_option, make_application
from epbuild.cli.verify import Ranges, Seed, declare_metrics
from epbuild.commands.bisect.values import BisectRequest
from epbuild.recipe.model import MadeInputs
from epbuild.report.json.checks import build_bisection_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.checks import print_bisection

app = make_application()


class Comparison(OptionGroup, frozen=True, kw_only=True):
    """Options for comparing the values of the target's EPs with those of the CPU EP."""

    panel: ClassVar[str] = "Comparison"

    inputs: Annotated[
        Path | None,
        declare_option(
            "--inputs",
            metavar="PATH",
            help="Inputs for the model: a .npz file, or a folder of ONNX test sets.",
            default="inputs of the recipe's verify, or generated inputs",
        ),
    ] = None
    seed: Seed = None
    ranges: Ranges
    metrics: Annotated[
        list[Any],
        declare_metrics("from the recipe or the catalog"),
    ]


_RULES = (
    Excludes(
        ("--inputs",), ("--seed", "--range"), "--inputs names the inputs, but --seed and --range generate them: choose one kind"
    ),
)


@app.command(
    rules=_RULES,
    exits={0: "no fault was found", 1: "a fault was found, or the search failed"},
)
def bisect(
    target: arguments.TargetStep,
    comparison: Comparison,
    *,
    max_compiles: Annotated[
        int | None,
        declare_option(
            "--max-compiles",
            min=1,
            metavar="N",
            help="Number of compiles, including that of the whole model, after which no smaller part is searched for.",
            default="12, or more for more than 256 nodes",
        ),
    ] = None,
    settings: arguments.Settings,
    json: arguments.Json = False,
) -> int:
    """Find the smallest part of a model that fails to compile, or the first node that computes other values than on the CPU EP.

    STEP is a compile step. The part is written to .epbuild/bisect, and if it compiles, also its inputs and expected outputs.
    """
    from epbuild.commands.bisect.bisection import bisect as find_fault  # imports onnx, which takes 0.2 s

    recipe, steps, _ = target.selection()
    if not steps:
        raise UsageError(f"'{recipe}' is a recipe: name a step as well, such as 'compile:main/phone/model'")
    seed, ranges = comparison.seed, dict(comparison.ranges)
    request = BisectRequest(
        recipe,
        steps[0],
        settings=tuple(settings),
        inputs=comparison.inputs,
        made=MadeInputs(seed or 0, 1, ranges) if seed is not None or ranges else None,
        asked=Thresholds(**dict(comparison.metrics)),
        max_compiles=max_compiles,
    )
    with WaitingRow() as waiting:
        found = find_fault(request, waiting)
    if json:
        print_json(build_bisection_document(found))
    else:
        print_bisection(found)
    return 0 if found.fault is None else 1

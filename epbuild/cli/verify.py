"""`epbuild verify`: check artifacts, or run their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from epbuild import api
from epbuild.catalog.facts import METRICS, Thresholds
from epbuild.cli import arguments
from epbuild.cli.options import Excludes, Needs, OptionGroup, declare_option, declare_options, make_application
from epbuild.commands.verify import LiveOptions
from epbuild.recipe.paths import is_library_path
from epbuild.report.json.checks import build_findings_document
from epbuild.report.json.documents import print_json
from epbuild.report.listeners import WaitingRow
from epbuild.report.terminal.checks import print_findings
from epbuild.verify.findings import Finding, Fitness

_TIMEOUT = "10m"
_FITNESS_CODES: Mapping[Fitness, int] = {"best": 0, "runs": 4, "recompile": 5, "cannot": 6}
_LOAD_CHECKS = ("load", "compatibility", "sdk", "here")

app = make_application()


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"invalid value '{text}': expected NAME=VALUE")
    return name, value


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition("..")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise typer.BadParameter(f"invalid range '{text}': expected INPUT=LOW..HIGH, such as ids=0..31999") from None


def parse_metric(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in METRICS:
        raise typer.BadParameter(f"unknown metric '{name}'; available: {', '.join(METRICS)}")
    try:
        return name, float(number)
    except ValueError:
        raise typer.BadParameter(f"invalid metric '{text}': expected NAME=NUMBER, such as cosine=0.99") from None


def declare_metrics(default: str) -> Any:
    """Declare the option `--metric`, with the description of its default."""
    names = ", ".join(METRICS)
    return declare_options(
        "--metric", parser=parse_metric, metavar="NAME=NUMBER", help=f"Threshold of a metric: {names}.", default=default
    )


Seed = Annotated[int | None, declare_option("--seed", min=0, metavar="N", help="Seed of generated inputs.", default="0")]
Ranges = Annotated[
    list[Any],
    declare_options(
        "--range",
        parser=parse_range,
        metavar="INPUT=LOW..HIGH",
        help="Range of generated numbers for an input, including both bounds.",
    ),
]


def _resolve_custom_ops(text: str) -> str:
    """Return the absolute path of a library, or the name of a package. Raises BadParameter for a missing library."""
    if Path(text).is_file():
        return str(Path(text).absolute())
    if is_library_path(text):
        raise typer.BadParameter(f"the library '{text}' does not exist")
    return text


class Loading(OptionGroup, frozen=True, kw_only=True):
    """Options for loading and running models."""

    panel: ClassVar[str] = "Loading"

    load: Annotated[bool, declare_option("--load", help="Load each model in the toolchain that compiled it.")] = False
    numbers: Annotated[
        bool,
        declare_option(
            "--numbers", help="Load and run each model, and compare its outputs with those of its source model on the CPU EP."
        ),
    ] = False
    here: Annotated[
        bool,
        declare_option("--here", help="Load each model, and answer with the exit code how well this machine runs the models."),
    ] = False
    strict: Annotated[bool, declare_option("--strict", help="Fail if a model cannot be loaded or compared on this machine.")] = (
        False
    )
    from_memory: Annotated[
        bool, declare_option("--from-memory", help="Pass models and their external data to ONNX Runtime from memory.")
    ] = False
    interpreter: Annotated[
        Path | None,
        declare_option(
            "--interpreter",
            metavar="PATH",
            help="Python interpreter of the environment that loads the models.",
            default="from the manifest",
        ),
    ] = None
    device: Annotated[
        Literal["cpu", "gpu", "npu"] | None,
        declare_option("--device", metavar="[cpu|gpu|npu]", help="Device to load the models on.", default="from the manifest"),
    ] = None
    ep_options: Annotated[
        list[Any],
        declare_options(
            "--option",
            parser=_parse_pair,
            metavar="NAME=VALUE",
            help="Set an option of the EP, instead of the value in the manifest.",
        ),
    ]
    custom_ops: Annotated[
        list[str],
        declare_options(
            "--custom-ops",
            parser=_resolve_custom_ops,
            metavar="LIBRARY|PACKAGE",
            help="Library or package with the models' custom operators.",
            default="from the manifest",
        ),
    ]
    timeout: Annotated[
        int | None,
        declare_option("--timeout", parser=arguments.age, metavar="TIME", help="Time limit of each process.", default=_TIMEOUT),
    ] = None


class Comparison(OptionGroup, frozen=True, kw_only=True):
    """Options for comparing the outputs of compiled models with those of their source models."""

    panel: ClassVar[str] = "Comparison (with --numbers)"

    recipe: Annotated[
        Path | None,
        arguments.declare_recipe("Recipe that the artifacts were built from. It names the source models."),
    ] = None
    settings: arguments.Settings
    sources: Annotated[
        list[str],
        declare_options("--source", metavar="[MODEL=]FILE", help="Source model of a compiled model. Can be given several times."),
    ]
    inputs: Annotated[
        list[str],
        declare_options(
            "--inputs",
            metavar="[MODEL=]PATH",
            help="Inputs for the models: a .npz file, or a folder of ONNX test sets.",
            default="generated inputs",
        ),
    ]
    seed: Seed = None
    samples: Annotated[
        int | None, declare_option("--samples", min=1, metavar="N", help="Number of generated input sets.", default="1")
    ] = None
    ranges: Ranges
    metrics: Annotated[
        list[Any],
        declare_metrics("from the catalog"),
    ]
    atol: Annotated[
        float | None, declare_option("--atol", min=0, metavar="NUMBER", help="Allowed absolute difference of each element.")
    ] = None
    rtol: Annotated[
        float | None,
        declare_option(
            "--rtol",
            min=0,
            metavar="NUMBER",
            help="Allowed difference of each element, relative to the largest value of its output.",
        ),
    ] = None


_RULES = (
    Needs(
        ("--recipe", "--source", "--inputs", "--seed", "--samples", "--range", "--metric", "--atol", "--rtol"),
        ("--numbers",),
        "--recipe, --source, --inputs, --seed, --samples, --range, --metric, --atol and --rtol require --numbers",
    ),
    Excludes(
        ("--metric",),
        ("--atol", "--rtol"),
        "--metric applies to whole outputs, but --atol and --rtol apply to each element: choose one kind",
    ),
    Needs(
        ("--strict", "--from-memory", "--interpreter", "--device", "--option", "--custom-ops", "--timeout"),
        ("--load", "--numbers", "--here"),
        "--strict, --from-memory, --interpreter, --device, --option, --custom-ops and --timeout require --load, --numbers or --here",
    ),
    Needs(("--set",), ("--recipe",), "--set changes values of the recipe that --recipe names: pass --recipe too"),
)


@app.command(
    rules=_RULES,
    exits={
        0: "no check failed; with --here, this machine runs all models best",
        1: "a check failed",
        2: "the command line is invalid, or there is nothing to verify at PATH",
        4: "with --here, this machine runs all models, but maybe not best",
        5: "with --here, a model must be compiled again for this machine",
        6: "with --here, this machine cannot run a model",
    },
)
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder, archive (.zip, .tar.zst), OCI image layout, manifest, or EPContext model.",
            show_default=False,
        ),
    ],
    loading: Loading,
    comparison: Comparison,
    *,
    json: arguments.Json = False,
) -> int:
    """Check the artifacts at PATH. No recipe is needed.

    Checks that cannot run on this machine are listed as skipped. They are not failures, except with --strict.
    """
    runs_models = loading.load or loading.numbers or loading.here
    with WaitingRow() as waiting:
        findings = api.verify(path, _build_live_options(loading, comparison) if runs_models else None, waiting)
    if json:
        print_json(build_findings_document(path, findings))
    else:
        print_findings(findings)
    return _choose_exit_code(findings)


def _choose_exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code. With --here, failures of loading decide how well this machine runs the models."""
    fitness = [_FITNESS_CODES[finding.fitness] for finding in findings if finding.fitness is not None]
    ignored = _LOAD_CHECKS if fitness else ()
    failed = any(finding.outcome == "failed" and finding.check not in ignored for finding in findings)
    return 1 if failed else max(fitness, default=0)


def _build_live_options(loading: Loading, comparison: Comparison) -> LiveOptions:
    return LiveOptions(
        numbers=loading.numbers,
        here=loading.here,
        strict=loading.strict,
        interpreter=loading.interpreter,
        device=loading.device,
        ep_options=dict(loading.ep_options),
        timeout=arguments.age(_TIMEOUT) if loading.timeout is None else loading.timeout,
        custom_ops=tuple(loading.custom_ops),
        from_memory=loading.from_memory,
        recipe=comparison.recipe,
        settings=tuple(comparison.settings),
        sources=tuple(comparison.sources),
        inputs=tuple(comparison.inputs),
        seed=comparison.seed,
        samples=comparison.samples,
        ranges=dict(comparison.ranges),
        asked=Thresholds(**dict(comparison.metrics)),
        atol=comparison.atol,
        rtol=comparison.rtol,
    )

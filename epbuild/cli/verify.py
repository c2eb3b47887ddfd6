"""`epbuild verify`: whether artifacts are what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from epbuild import api
from epbuild.catalog.numbers import METRICS, Thresholds
from epbuild.cli import arguments, completion
from epbuild.cli.usage import UsageError
from epbuild.commands.verify import LiveOptions, Misuse
from epbuild.recipe.custom_ops import names_library
from epbuild.report.json.documents import print_json
from epbuild.report.terminal.verify import findings_document, print_findings
from epbuild.report.terminal.waiting import WaitingRow

_TIMEOUT = "10m"

app = arguments.application()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE")
    return name, value


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition("..")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not INPUT=LOW..HIGH, such as ids=0..31999") from None


def _metric(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in METRICS:
        raise typer.BadParameter(f"there is no metric '{name}'; there are: {', '.join(METRICS)}")
    try:
        return name, float(number)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not NAME=NUMBER, such as cosine=0.99") from None


def _custom_ops(text: str) -> str:
    """The name of a package, or the path of a library that is there, in which the name of a file is no package's."""
    if Path(text).is_file():
        return str(Path(text).absolute())
    if names_library(text):
        raise typer.BadParameter(f"there is no library at {text}")
    return text


@app.command()
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or one EPContext model.",
            show_default=False,
        ),
    ],
    *,
    load: Annotated[
        bool, arguments.option("--load", help="Open a session for each model, in the toolchain that it was compiled with.")
    ] = False,
    numbers: Annotated[
        bool, arguments.option("--numbers", help="Load and run each model, and compare it with its source model on the CPU EP.")
    ] = False,
    strict: Annotated[
        bool, arguments.option("--strict", help="What cannot be loaded or compared here is a failure too.")
    ] = False,
    interpreter: Annotated[
        Path | None,
        arguments.option(
            "--interpreter", metavar="PATH", help="The python of the environment to load with; default: by the manifest."
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "gpu", "npu"] | None,
        arguments.option("--device", metavar="[cpu|gpu|npu]", help="The device to load on; default: by the manifest."),
    ] = None,
    ep_options: Annotated[
        list[Any],
        arguments.options("--option", parser=_pair, metavar="NAME=VALUE", help="Give the EP an option, over the manifest's."),
    ],
    custom_ops: Annotated[
        list[str],
        arguments.options(
            "--custom-ops",
            parser=_custom_ops,
            metavar="LIBRARY|PACKAGE",
            help="What has the models' custom operators; default: by the manifest.",
        ),
    ],
    timeout: Annotated[
        int | None,
        arguments.option(
            "--timeout", parser=arguments.age, metavar="TIME", help=f"How long one process may take; default: {_TIMEOUT}."
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        arguments.option(
            "--recipe",
            "-r",
            metavar="RECIPE",
            help="The recipe that the artifacts came from, to find their source models by.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    settings: arguments.Settings,
    sources: Annotated[list[str], arguments.options("--source", metavar="[MODEL=]FILE", help="Where the source of a model is.")],
    inputs: Annotated[
        list[str],
        arguments.options("--inputs", metavar="[MODEL=]PATH", help="What to run on: a .npz file, or a folder of ONNX test sets."),
    ],
    seed: Annotated[
        int | None, arguments.option("--seed", min=0, metavar="N", help="What to make inputs from otherwise; default: 0.")
    ] = None,
    samples: Annotated[
        int | None, arguments.option("--samples", min=1, metavar="N", help="How many sets of inputs to make; default: 1.")
    ] = None,
    ranges: Annotated[
        list[Any],
        arguments.options(
            "--range",
            parser=_range,
            metavar="INPUT=LOW..HIGH",
            help="What the numbers that are made for an input lie between, both included.",
        ),
    ],
    metrics: Annotated[
        list[Any],
        arguments.options(
            "--metric",
            parser=_metric,
            metavar="NAME=NUMBER",
            help=f"What a metric has to come to, in place of the catalog's: {', '.join(METRICS)}.",
        ),
    ],
    atol: Annotated[
        float | None, arguments.option("--atol", min=0, metavar="NUMBER", help="The absolute difference to allow.")
    ] = None,
    rtol: Annotated[
        float | None,
        arguments.option(
            "--rtol", min=0, metavar="NUMBER", help="The difference to allow as a part of an output's largest value."
        ),
    ] = None,
    json: arguments.Json = False,
) -> int:
    """Check the artifacts at PATH. No recipe is needed.

    Exit code 1: a check failed. What could not be checked here is shown, and is no failure.
    """
    given = (recipe, sources, inputs, ranges, metrics)
    if not numbers and (any(given) or any(value is not None for value in (seed, samples, atol, rtol))):
        named = "--recipe, --source, --inputs, --seed, --samples, --range, --metric, --atol and --rtol"
        raise UsageError(f"{named} are about comparing: add --numbers")
    if metrics and (atol, rtol) != (None, None):
        raise UsageError("--metric judges outputs, --atol and --rtol judge each of their elements: choose one")
    if not (load or numbers) and (strict or interpreter or device or ep_options or custom_ops or timeout is not None):
        raise UsageError("--strict, --interpreter, --device, --option, --custom-ops and --timeout are about loading: add --load")
    if settings and not recipe:
        raise UsageError("--set is for the recipe that the artifacts came from: name it with --recipe")

    options = LiveOptions(
        numbers=numbers,
        strict=strict,
        interpreter=interpreter,
        device=device,
        ep_options=dict(ep_options),
        timeout=arguments.age(_TIMEOUT) if timeout is None else timeout,
        custom_ops=tuple(custom_ops),
        recipe=recipe,
        settings=tuple(settings),
        sources=tuple(sources),
        inputs=tuple(inputs),
        seed=seed,
        samples=samples,
        ranges=dict(ranges),
        asked=Thresholds(**dict(metrics)),
        atol=atol,
        rtol=rtol,
    )
    try:
        with WaitingRow() as waiting:
            findings = api.verify(path, options if load or numbers else None, waiting)
    except Misuse as error:
        if error.option is None:
            raise UsageError(str(error)) from None
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    if json:
        print_json(findings_document(path, findings))
    else:
        print_findings(findings)
    return 1 if any(finding.outcome == "failed" for finding in findings) else 0

"""`epbuild verify`: whether artifacts are what they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from epbuild.archive.opened import OpenedArtifact, opened
from epbuild.archive.refusal import UnsoundArchive
from epbuild.catalog.numbers import METRICS, Thresholds
from epbuild.cli import arguments, completion
from epbuild.cli.usage import UsageError
from epbuild.core.errors import NothingToVerify, Problem
from epbuild.report.documents import print_json
from epbuild.report.findings import findings_document, print_findings
from epbuild.verify.archive_statement import check_statement
from epbuild.verify.artifact import Artifact, find_artifacts
from epbuild.verify.faults import faulty_models
from epbuild.verify.findings import Finding
from epbuild.verify.static import check_artifact

if TYPE_CHECKING:
    from epbuild.verify.live.check import Trial

_TIMEOUT = "10m"

app = arguments.application()


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
    options: Annotated[
        list[str], arguments.options("--option", metavar="NAME=VALUE", help="Give the EP an option, over the manifest's.")
    ],
    custom_ops: Annotated[
        list[str],
        arguments.options(
            "--custom-ops",
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
        list[str],
        arguments.options(
            "--range", metavar="INPUT=LOW..HIGH", help="What the numbers that are made for an input lie between, both included."
        ),
    ],
    metrics: Annotated[
        list[str],
        arguments.options(
            "--metric",
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

    Exit code 1: a check failed. What could not be checked here is told, and is no failure.
    """
    given = (recipe, sources, inputs, ranges, metrics)
    if not numbers and (any(given) or any(value is not None for value in (seed, samples, atol, rtol))):
        options_ = "--recipe, --source, --inputs, --seed, --samples, --range, --metric, --atol and --rtol"
        raise UsageError(f"{options_} say how to compare: add --numbers")
    if metrics and (atol, rtol) != (None, None):
        raise UsageError("--metric judges outputs, --atol and --rtol judge each of their elements: choose one")
    if not (load or numbers) and (strict or interpreter or device or options or custom_ops or timeout is not None):
        raise UsageError("--strict, --interpreter, --device, --option, --custom-ops and --timeout say how to load: add --load")
    if settings and not recipe:
        raise UsageError("--set is for the recipe that the artifacts came from: name it with --recipe")

    def trial_of(artifacts: Sequence[Artifact]) -> Trial | None:
        if not (load or numbers):
            return None
        from epbuild.compile.sharing import measure_alone
        from epbuild.verify.live.check import Comparison, Made, Sources, Trial, Wishes

        names = _model_names(artifacts, interpreter)
        return Trial(
            numbers=numbers,
            strict=strict,
            wishes=Wishes(
                interpreter,
                device,
                _pairs(options),
                arguments.age(_TIMEOUT) if timeout is None else timeout,
                _custom_ops(custom_ops),
            ),
            sources=Sources(_by_model("--source", sources, names), recipe, tuple(settings)),
            comparison=Comparison(
                _by_model("--inputs", inputs, names),
                Made(seed or 0, samples or 1, _ranges(ranges, artifacts))
                if (seed, samples, ranges) != (None, None, [])
                else None,
                Thresholds(**_numbers("--metric", metrics, METRICS)),
                atol,
                rtol,
                measure_alone,
            ),
        )

    findings = list(_findings(path, trial_of))
    if json:
        print_json(findings_document(path, findings))
    else:
        print_findings(findings)
    return 1 if any(finding.outcome == "failed" for finding in findings) else 0


def _findings(path: Path, trial_of: Callable[[Sequence[Artifact]], Trial | None]) -> Iterator[Finding]:
    """What there is to say of everything at a path; of an archive or an image, first that it is whole, and what it was published as."""
    try:
        with opened(path, arguments.tell) as received:
            skipped = received.skipped()
            try:
                artifacts = find_artifacts(received.place)
            except NothingToVerify as error:
                if not skipped:
                    raise
                message = f"{path} holds archives or images alone: name one of them, such as {skipped[0].as_posix()}"
                raise NothingToVerify(Problem("EPB600", message)) from error
            trial = trial_of(artifacts)
            about = list(_about(path, received))
            yield from about
            sound = not any(finding.outcome == "failed" for finding in about)
            for artifact in artifacts:
                for finding in _check(artifact, trial, received, sound=sound):
                    yield replace(finding, message=received.shown(finding.message))
            for place in skipped:
                yield Finding("archive", place.as_posix(), "skipped", "It was not looked into: name it to verify it.")
    except UnsoundArchive as error:
        for problem in error.problems:
            message = f"{problem.message[:1].upper()}{problem.message[1:]}."
            yield Finding("archive", path.as_posix(), "failed", message, problem.code, problem.hint)


def _about(path: Path, received: OpenedArtifact) -> Iterator[Finding]:
    if received.unpacked:
        yield Finding("archive", path.as_posix(), "passed")
    if received.unpacked and path.is_file() and (found := check_statement(path)) is not None:
        yield found


def _check(artifact: Artifact, trial: Trial | None, received: OpenedArtifact, *, sound: bool) -> Iterator[Finding]:
    """What its bytes say, and then what EPs say of its models: no EP is given one of which it is known that something is wrong."""
    found = []
    for finding in check_artifact(artifact):
        found.append(finding)
        yield finding
    if trial is None:
        return
    from epbuild.verify.live.check import model_names, try_artifact

    faulty = faulty_models(artifact, found) if sound else dict.fromkeys(model_names(artifact), "its bytes are not in order")
    yield from try_artifact(artifact, trial, lambda text: arguments.tell(received.shown(text)), faulty)


def _model_names(artifacts: Sequence[Artifact], interpreter: Path | None) -> list[str]:
    """What models go by on the command line; a mistake where one of them needs an interpreter, and none is named."""
    from epbuild.verify.live.check import model_names

    names: list[str] = []
    for artifact in artifacts:
        found = model_names(artifact).values()
        if found and interpreter is None and not artifact.has_manifest:
            message = "without a manifest, nothing says what to load a model with"
            raise UsageError(f"{message}: verify its folder, or name an environment with --interpreter")
        names += (name for name in found if name not in names)
    return names


def _custom_ops(texts: Sequence[str]) -> tuple[str, ...]:
    """Names of packages, and paths of libraries that are there, in which the name of a file is no package's."""
    from epbuild.recipe.custom_ops import names_library

    found = []
    for text in texts:
        is_file = Path(text).is_file()
        if names_library(text) and not is_file:
            raise typer.BadParameter(f"there is no library at {text}", param_hint="--custom-ops")
        found.append(str(Path(text).absolute()) if is_file else text)
    return tuple(found)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise typer.BadParameter(f"'{name}{equals}' is not NAME=VALUE", param_hint="--option")
    return {name: value for name, _, value in pairs}


def _ranges(texts: Sequence[str], artifacts: Sequence[Artifact]) -> dict[str, tuple[float, float]]:
    """The least and the largest number by input, of an input that one of the models has."""
    headers = [model.header for artifact in artifacts for model in artifact.models]
    names = {value.name for header in headers if not isinstance(header, str) for value in header.inputs}
    found = {}
    for text in texts:
        name, _, bounds = text.rpartition("=")
        low, _, high = bounds.partition("..")
        try:
            found[name] = (float(low), float(high))
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not INPUT=LOW..HIGH, such as ids=0..31999", param_hint="--range") from None
        if name not in names:
            message = f"no model has an input '{name}'; there are: {', '.join(sorted(names))}"
            raise typer.BadParameter(message, param_hint="--range")
    return found


def _numbers(option: str, texts: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    """Numbers by name; a mistake where one is not known."""
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in known:
            raise typer.BadParameter(f"there is no metric '{name}'; there are: {', '.join(known)}", param_hint=option)
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not NAME=NUMBER, such as cosine=0.99", param_hint=option) from None
    return found


def _by_model(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Places by model; under the empty name, the one that is given for no model in particular."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or (name not in names and Path(text).exists()):
            name, place = "", text
        elif name not in names:
            raise typer.BadParameter(f"there is no model '{name}'; there are: {', '.join(names)}", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"two are given for {name or 'every model'}", param_hint=option)
        found[name] = Path(place)
    return found

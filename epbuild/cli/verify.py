"""`epbuild verify`: whether artifacts are what they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from epbuild.cli import arguments
from epbuild.errors import Problem
from epbuild.report import findings_document, print_findings, print_json
from epbuild.unpack import Lent, UnsoundArchive, check_statement, opened
from epbuild.verify import Artifact, Finding, NothingToVerify, check_artifact, faulty_models, find_artifacts

if TYPE_CHECKING:
    from epbuild.build.trial import DeviceType, Trial

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("path", type=_PATH)
@click.option("--load", is_flag=True, help="Open a session for each model, in the toolchain that it was compiled with.")
@click.option("--numbers", is_flag=True, help="Load and run each model, and compare it with its source model on the CPU EP.")
@click.option("--strict", is_flag=True, help="What cannot be loaded or compared here is a failure too.")
@click.option("--interpreter", type=_PATH, help="The python of the environment to load with; default: by the manifest.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "npu"]), help="The device to load on; default: by the manifest.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Give the EP an option, over the manifest's.")
@click.option("--timeout", type=arguments.AGE, default="10m", show_default=True, help="How long one process may take.")
@click.option("--recipe", "-r", type=_PATH, help="The recipe that the artifacts came from, to find their source models by.")
@arguments.settings
@click.option("--source", "sources", multiple=True, metavar="[MODEL=]FILE", help="Where the source of a model is.")
@click.option(
    "--inputs", multiple=True, metavar="[MODEL=]PLACE", help="What to run on: a .npz file, or a folder of ONNX test sets."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="What to make inputs from otherwise.")
@click.option("--atol", type=click.FloatRange(min=0), help="The absolute difference to allow.")
@click.option("--rtol", type=click.FloatRange(min=0), help="The difference to allow as a part of an output's largest value.")
@arguments.json
def verify(
    path: Path,
    load: bool,
    numbers: bool,
    strict: bool,
    interpreter: Path | None,
    device: DeviceType | None,
    options: tuple[str, ...],
    timeout: int,
    recipe: Path | None,
    settings: tuple[str, ...],
    sources: tuple[str, ...],
    inputs: tuple[str, ...],
    seed: int,
    atol: float | None,
    rtol: float | None,
    json: bool,
) -> int:
    """Check the artifacts at PATH: a folder, an archive (.zip, .tar.zst), an OCI image layout, a manifest, or one EPContext model. No
    recipe is needed.

    Exit code 1: a check failed. What could not be checked here is told, and is no failure.
    """
    if not numbers and (recipe or sources or inputs or atol is not None or rtol is not None):
        raise click.UsageError("--recipe, --source, --inputs, --atol and --rtol say how to compare: add --numbers")
    if not (load or numbers) and (strict or interpreter or device or options):
        raise click.UsageError("--strict, --interpreter, --device and --option say how to load: add --load")

    def trial_of(artifacts: Sequence[Artifact]) -> Trial | None:
        if not (load or numbers):
            return None
        from epbuild.build.trial import Comparison, Sources, Trial, Wishes

        names = _model_names(artifacts, interpreter)
        return Trial(
            numbers=numbers,
            strict=strict,
            wishes=Wishes(interpreter, device, _pairs(options), timeout),
            sources=Sources(_by_model("--source", sources, names), recipe, settings),
            comparison=Comparison(_by_model("--inputs", inputs, names), seed, atol, rtol),
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
        with opened(path, arguments.tell) as lent:
            passed_over = lent.passed_over()
            try:
                artifacts = find_artifacts(lent.place)
            except NothingToVerify as error:
                if not passed_over:
                    raise
                message = f"{path} holds archives or images alone: name one of them, such as {passed_over[0].as_posix()}"
                raise NothingToVerify(Problem("EPB600", message)) from error
            trial = trial_of(artifacts)
            about = list(_about(path, lent))
            yield from about
            sound = not any(finding.outcome == "failed" for finding in about)
            for artifact in artifacts:
                for finding in _check(artifact, trial, lent, sound=sound):
                    yield replace(finding, message=lent.told(finding.message))
            for place in passed_over:
                yield Finding("archive", place.as_posix(), "skipped", "It was not looked into: name it to verify it.")
    except UnsoundArchive as error:
        for problem in error.problems:
            message = f"{problem.message[:1].upper()}{problem.message[1:]}."
            yield Finding("archive", path.as_posix(), "failed", message, problem.code, problem.hint)


def _about(path: Path, lent: Lent) -> Iterator[Finding]:
    if lent.form is not None:
        yield Finding("archive", path.as_posix(), "passed")
    if lent.form in ("zip", "tar.zst") and (found := check_statement(path)) is not None:
        yield found


def _check(artifact: Artifact, trial: Trial | None, lent: Lent, *, sound: bool) -> Iterator[Finding]:
    """What its bytes say, and then what EPs say of its models: no EP is given one of which it is known that something is wrong."""
    found = []
    for finding in check_artifact(artifact):
        found.append(finding)
        yield finding
    if trial is None:
        return
    from epbuild.build.trial import model_names, try_artifact

    faulty = faulty_models(artifact, found) if sound else dict.fromkeys(model_names(artifact), "its bytes are not in order")
    yield from try_artifact(artifact, trial, lambda text: arguments.tell(lent.told(text)), faulty)


def _model_names(artifacts: Sequence[Artifact], interpreter: Path | None) -> list[str]:
    """What models go by on the command line; a mistake where one of them needs an interpreter, and none is named."""
    from epbuild.build.trial import model_names

    names: list[str] = []
    for artifact in artifacts:
        found = model_names(artifact).values()
        if found and interpreter is None and not artifact.has_manifest:
            message = "without a manifest, nothing says what to load a model with"
            raise click.UsageError(f"{message}: verify its folder, or name an environment with --interpreter")
        names += (name for name in found if name not in names)
    return names


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"'{name}{equals}' is not NAME=VALUE", param_hint="--option")
    return {name: value for name, _, value in pairs}


def _by_model(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Places by model; under the empty name, the one that is given for no model in particular."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or (name not in names and Path(text).exists()):
            name, place = "", text
        elif name not in names:
            raise click.BadParameter(f"there is no model '{name}'; there are: {', '.join(names)}", param_hint=option)
        if name in found:
            raise click.BadParameter(f"two are given for {name or 'every model'}", param_hint=option)
        found[name] = Path(place)
    return found

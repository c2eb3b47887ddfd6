"""`epbuild verify`: check all artifacts at a path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from epbuild.archive.members import UnsoundArchive
from epbuild.archive.opened import open_artifact
from epbuild.cache.digests import Counting
from epbuild.catalog.facts import Thresholds
from epbuild.core.errors import Misuse, NothingToVerify, Problem
from epbuild.core.shown import ProgressLines, format_path
from epbuild.engine.events import Progress
from epbuild.session.events import HashingEvents, note_lines
from epbuild.verify.artifact import ArtifactFolder, find_artifacts
from epbuild.verify.findings import Finding, format_sentence
from epbuild.verify.listing import check_statement
from epbuild.verify.live.options import LoadOptions
from epbuild.verify.static import check_artifact, find_faulty_models

if TYPE_CHECKING:
    from epbuild.verify.live.check import LiveCheck


class LiveOptions(LoadOptions, frozen=True):
    """Options for loading and comparing models, as texts from the command line."""

    recipe: Path | None = None
    settings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Source models, as `[MODEL=]FILE`."""
    inputs: tuple[str, ...] = ()
    """Inputs, as `[MODEL=]PATH`."""
    seed: int | None = None
    samples: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    asked: Thresholds = field(default_factory=Thresholds)
    atol: float | None = None
    rtol: float | None = None


def verify(path: Path, live: LiveOptions | None, progress: Progress) -> Iterator[Finding]:
    """Check all artifacts at a path, and yield the findings. Findings about a whole archive or image come first.

    `progress` receives events about slow work. Raises Misuse, NothingToVerify, ToolchainError, and the errors of reading a
    recipe.
    """
    lines, counting = note_lines(progress), HashingEvents(progress).counting
    try:
        with open_artifact(path, lines) as received:
            skipped = received.find_skipped()
            artifacts = _find_artifacts(path, received.place, skipped, counting)
            check = _build_live_check(artifacts, live) if live is not None else None
            sound = True
            if received.unpacked:
                yield Finding("archive", path.as_posix(), "passed")
                if path.is_file() and (found := check_statement(path, counting)) is not None:
                    sound = found.outcome != "failed"
                    yield found
            failed: list[Finding] = []
            for artifact in artifacts:
                for finding in _check_artifact(artifact, check, lambda text: lines(received.shown(text)), failed, sound=sound):
                    failed += [finding] if finding.outcome == "failed" else []
                    yield replace(finding, message=received.shown(finding.message))
            for place in skipped:
                yield Finding(
                    "archive",
                    place.as_posix(),
                    "skipped",
                    "The artifact was not checked. Name it on the command line to verify it.",
                )
    except UnsoundArchive as error:
        for problem in error.problems:
            yield Finding("archive", path.as_posix(), "failed", format_sentence(problem.message), problem.code, problem.hint)


def _find_artifacts(path: Path, place: Path, skipped: Sequence[Path], counting: Counting) -> list[ArtifactFolder]:
    """Return the artifacts at `place`, the unpacked content of `path`. Raises NothingToVerify, which names a skipped archive if any."""
    try:
        return [dataclasses.replace(artifact, counting=counting) for artifact in find_artifacts(place)]
    except NothingToVerify as error:
        if not skipped:
            raise
        message = f"{format_path(path)} contains only archives or images: name one of them, such as {skipped[0].as_posix()}"
        raise NothingToVerify(Problem("EPB600", message)) from error


def _check_artifact(
    artifact: ArtifactFolder, check: LiveCheck | None, lines: ProgressLines, failed: Sequence[Finding], *, sound: bool
) -> Iterator[Finding]:
    """Check an artifact's files, and then load its models if `check` is given. Yield the findings.

    Models with a known fault are not loaded. `failed` has the failures of other artifacts, which may have checked files of this one.
    """
    covered = {artifact.format_path(name) for name in artifact.covered}
    found = [finding for finding in failed if finding.subject in covered]
    for finding in check_artifact(artifact):
        found.append(finding)
        yield finding
    if check is None:
        return
    from epbuild.verify.live.check import check_live, list_model_names

    faulty = (
        find_faulty_models(artifact, found)
        if sound
        else dict.fromkeys(list_model_names(artifact), "the check of the archive failed")
    )
    yield from check_live(artifact, check, lines, faulty)


def _build_live_check(artifacts: Sequence[ArtifactFolder], options: LiveOptions) -> LiveCheck:
    from epbuild.compile.alone import compile_alone
    from epbuild.recipe.model import MadeInputs
    from epbuild.session.planning import read_plan
    from epbuild.session.request import Request
    from epbuild.verify.live.check import LiveCheck
    from epbuild.verify.live.comparison import OutputComparison
    from epbuild.verify.live.source import Sources

    names = _collect_model_names(artifacts, options.interpreter)
    _check_ranges(options.ranges, artifacts)
    plan = read_plan(Request(options.recipe, settings=options.settings))[1] if options.recipe is not None else None
    made = (options.seed, options.samples) != (None, None) or options.ranges
    return LiveCheck(
        **{name: getattr(options, name) for name in LoadOptions.__struct_fields__},
        sources=Sources(_parse_paths_by_model("--source", options.sources, names), options.recipe, plan),
        comparison=OutputComparison(
            _parse_paths_by_model("--inputs", options.inputs, names),
            MadeInputs(options.seed or 0, options.samples or 1, options.ranges) if made else None,
            options.asked,
            options.atol,
            options.rtol,
            compile_alone,
        ),
    )


def _collect_model_names(artifacts: Sequence[ArtifactFolder], interpreter: Path | None) -> list[str]:
    """Return the names of all models. Raises Misuse if a model needs `--interpreter` and the option is missing."""
    from epbuild.verify.live.check import list_model_names

    names: list[str] = []
    for artifact in artifacts:
        found = list_model_names(artifact).values()
        if found and interpreter is None and not artifact.has_manifest:
            message = "no manifest names the environment that loads the models"
            raise Misuse(f"{message}: verify the folder with the manifest, or name a Python with --interpreter")
        names += (name for name in found if name not in names)
    return names


def _check_ranges(ranges: Mapping[str, object], artifacts: Sequence[ArtifactFolder]) -> None:
    """Raise Misuse if `ranges` names an input that no model has."""
    headers = [model.header for artifact in artifacts for model in artifact.models]
    known = {value.name for header in headers if not isinstance(header, str) for value in header.inputs}
    for name in ranges:
        if name not in known:
            raise Misuse(f"no model has an input '{name}'; available: {', '.join(sorted(known))}", "--range")


def _parse_paths_by_model(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Parse `[MODEL=]PATH` texts to paths by model name. The empty name stands for all models. Raises Misuse."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or (name not in names and Path(text).exists()):
            name, place = "", text
        elif name not in names:
            raise Misuse(f"unknown model '{name}'; available: {', '.join(names)}", option)
        if name in found:
            raise Misuse(f"more than one value for {f'model {name!r}' if name else 'all models'}", option)
        found[name] = Path(place)
    return found

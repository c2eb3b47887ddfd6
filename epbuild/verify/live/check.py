"""Live checks of `epbuild verify`: load and run artifacts in their toolchain.

EPs run only in child processes, in the toolchain that compiled the artifact.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.core.errors import ToolchainError
from epbuild.core.shown import ProgressLines
from epbuild.toolchain.environment import Toolchains, list_toolchains
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.contexts import list_sharing_sets
from epbuild.verify.facts import Model
from epbuild.verify.findings import Finding, Outcome, format_sentence
from epbuild.verify.live.comparison import NumbersFindings, OutputComparison
from epbuild.verify.live.fitness import make_cannot, report_fitness, report_sdks
from epbuild.verify.live.options import LoadOptions
from epbuild.verify.live.session import CannotLoad, open_artifact_session
from epbuild.verify.live.source import Sources
from epbuild.verify.live.worker import Attempt, Load, Session, run_models

_VIRTUAL = ".virtual"
_NO_EP = "EPB305"
"""Code of an environment without the package of an EP."""
# Outcomes by the values of ONNX Runtime's OrtCompiledModelCompatibility.
_ANSWERS: Mapping[str, tuple[Outcome, str]] = {
    "EP_SUPPORTED_OPTIMAL": ("passed", "{ep} accepts the model on {device} without recompilation."),
    "EP_SUPPORTED_PREFER_RECOMPILATION": ("passed", "{ep} accepts the model on {device}, but recommends recompiling it."),
    "EP_UNSUPPORTED": ("failed", "{ep} rejects the model on {device}; the model was compiled for {written}."),
    "EP_NOT_APPLICABLE": ("skipped", "{ep} does not report whether the model is compatible with {device}."),
}


class LiveCheck(LoadOptions, frozen=True, kw_only=True):
    """Options of the live checks, and what the checks need. Every model is always loaded."""

    toolchains: Toolchains = field(default_factory=list_toolchains)
    sources: Sources = field(default_factory=lambda: Sources({}))
    comparison: OutputComparison = field(default_factory=OutputComparison)


class _Batch(Struct, frozen=True):
    """Models to open at the same time, in order, with their names."""

    models: tuple[tuple[str, Model], ...]
    share: bool


def list_model_names(artifact: ArtifactFolder) -> dict[str, str]:
    """Return the names of an artifact's compiled models, by file: the name in the manifest, or else the file name without its suffix."""
    listed = artifact.listed
    return {
        model.file: listed[model.file].name if model.file in listed else Path(model.file).stem
        for model in artifact.models
        if model.nodes
    }


def check_live(
    artifact: ArtifactFolder, check: LiveCheck, lines: ProgressLines, faulty: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Finding]:
    """Check every compiled model of an artifact, and yield `sdk`, `load`, `compatibility`, `here` and `numbers` findings.

    `faulty` has the files of models that must not be loaded, with the reason as the end of a sentence. Models that would be
    open together with a faulty model are not loaded either. `lines` receives the progress of slow work. Raises
    ToolchainError if there is no environment, and the errors of reading the recipe.
    """
    for finding in _check_batches(artifact, check, lines, faulty):
        if check.strict and finding.outcome == "skipped" and finding.check != "compatibility":
            yield replace(
                finding, outcome="failed", code="EPB640", hint="Run this check on a machine that supports it, or omit --strict."
            )
        else:
            yield finding


def _check_batches(
    artifact: ArtifactFolder, check: LiveCheck, lines: ProgressLines, faulty: Mapping[str, str]
) -> Iterator[Finding]:
    batches = []
    for batch in _make_batches(artifact, list_model_names(artifact)):
        if any(model.file in faulty for _, model in batch.models):
            yield from _report_not_loaded(batch, artifact, check, faulty)
        else:
            batches.append(batch)
    if not batches:
        return
    try:
        session = _open_session(artifact, check, lines)
    except CannotLoad as reason:
        for batch in batches:
            for _, model in batch.models:
                subject = artifact.format_path(model.file)
                yield Finding("load", subject, "skipped", format_sentence(str(reason)))
                if check.here:
                    yield make_cannot(subject, str(reason))
        return
    for batch in batches:
        with tempfile.TemporaryDirectory(prefix="epbuild-verify-", ignore_cleanup_errors=True) as folder:
            yield from _check_batch(batch, artifact, session, check, Path(folder))


def _open_session(artifact: ArtifactFolder, check: LiveCheck, lines: ProgressLines) -> Session:
    """Return the session for an artifact. With `here`, an environment without the EP is an answer: CannotLoad."""
    try:
        session = open_artifact_session(artifact, check, check.sources, check.toolchains, lines)
    except ToolchainError as error:
        if check.here and all(problem.code == _NO_EP for problem in error.problems):
            raise CannotLoad("; ".join(problem.message for problem in error.problems)) from error
        raise
    return replace(
        session, data_folders={model.path: model.data_folder for model in artifact.models if model.shared_data is not None}
    )


def _report_not_loaded(batch: _Batch, artifact: ArtifactFolder, check: LiveCheck, faulty: Mapping[str, str]) -> Iterator[Finding]:
    """Report that no model of a batch is loaded, because one of them is faulty."""
    first = next(model.file for _, model in batch.models if model.file in faulty)
    together = f"it would be loaded together with {artifact.format_path(first)}, which failed a check"
    for _, model in batch.models:
        subject, reason = artifact.format_path(model.file), faulty.get(model.file, together)
        yield Finding("load", subject, "skipped", f"It was not loaded, because {reason}.")
        if check.here:
            yield make_cannot(subject, reason)


def _check_batch(batch: _Batch, artifact: ArtifactFolder, session: Session, check: LiveCheck, scratch: Path) -> Iterator[Finding]:
    """Load the models of a batch together and report on each model. If `check.numbers` is set, compare them with their sources."""
    if batch.share:
        session = session.with_sharing(share=True)
    loads = {name: Load(name, model.path, _find_compatibility(model, session)) for name, model in batch.models}
    shown = {name: artifact.format_path(model.file) for name, model in batch.models}
    attempt = run_models(list(loads.values()), session, scratch)
    hint = "There is no manifest with the EP's options. Set them with --option." if artifact.manifest is None else None
    models = dict(batch.models)
    yield from report_sdks(attempt, models, shown, session)
    opened = list(_report_loads(attempt, shown, session, hint))
    yield from opened
    yield from _report_compatibility(attempt, shown, loads)
    if check.here:
        yield from report_fitness(attempt, models, shown, opened)
    if not check.numbers:
        return
    inputs = {name: model.header.inputs for name, model in batch.models if not isinstance(model.header, str)}
    numbers = NumbersFindings(check.comparison, session, check.sources, artifact.document, scratch)
    for found in numbers.judge({name: model.path for name, model in batch.models}, inputs, attempt.failure):
        yield replace(found, subject=shown[found.subject], message=format_sentence(found.message))


def _make_batches(artifact: ArtifactFolder, names: Mapping[str, str]) -> Iterator[_Batch]:
    """Group models that share a binary or weights. Every other model is a separate batch."""
    models = [model for model in artifact.models if model.file in names]
    if models and artifact.manifest is not None and artifact.manifest.share_weights:
        sets = [[model for model in found if model.file in names] for found in list_sharing_sets(artifact, artifact.manifest)]
        yield from (_Batch(tuple((names[model.file], model) for model in found), share=True) for found in sets if found)
        shared = {model.file for found in sets for model in found}
        models = [model for model in models if model.file not in shared]
    together: dict[str, list[Model]] = {}
    for model in models:
        binaries = [binary for node in model.nodes if (binary := model.find_binary(node)) is not None]
        # If the manifest shares nothing, each model has its own session, even if models have context binaries of the same name.
        key = min(binaries, default=model.file) if artifact.manifest is None else model.file
        together.setdefault(key, []).append(model)
    for found in together.values():
        yield _Batch(tuple((names[model.file], model) for model in found), share=len(found) > 1)


def _find_compatibility(model: Model, session: Session) -> dict[str, str]:
    """Return a model's compatibility strings for the EPs of the session."""
    written = {ep.removesuffix(_VIRTUAL): value for ep, value in model.compatibility.items()}
    return {ep.entry.ep: written[ep.entry.ep] for ep in session.eps if ep.entry.ep in written}


def _report_loads(attempt: Attempt, shown: Mapping[str, str], session: Session, hint: str | None) -> Iterator[Finding]:
    failure, seconds = attempt.failure, attempt.seconds
    on = f"{' from memory' if session.from_memory else ''}{f' on {attempt.devices}' if attempt.devices else ''}"
    without = (
        f"; these options were omitted, because their files are not in the artifact: {', '.join(session.lacking)}"
        if session.lacking
        else ""
    )
    for name, subject in shown.items():
        concerns_it = failure is not None and (failure.model in (None, name) or (failure.cannot_load and name not in seconds))
        if failure is not None and concerns_it and failure.cannot_load:
            yield Finding("load", subject, "skipped", format_sentence(failure.message))
        elif failure is not None and concerns_it:
            yield Finding("load", subject, "failed", format_sentence(failure.message), failure.code, hint)
        elif name in seconds:
            yield Finding(
                "load", subject, "passed", f"Opened in {seconds[name]:.2f} s{on}, with {_format_versions(session)}{without}."
            )
        else:
            message = "It was not loaded, because an earlier model could not be opened."
            yield Finding("load", subject, "skipped", message)


def _format_versions(session: Session) -> str:
    distributions = session.environment.fingerprint.distributions
    packages = [name for ep in session.eps for name in ep.entry.distributions if name in distributions and ep.library is None]
    others = [f"{name} {distributions[name]}" for name in dict.fromkeys(packages) if name != "onnxruntime"]
    return " and ".join([f"onnxruntime {session.environment.onnxruntime}", *others])


def _report_compatibility(attempt: Attempt, shown: Mapping[str, str], loads: Mapping[str, Load]) -> Iterator[Finding]:
    for report in attempt.find_reports("compatibility"):
        subject, ep = shown[report["model"]], report["ep"]
        if report["answer"] is None:
            message = f"{ep} did not report whether the model is compatible with this machine: {report['reason']}"
            yield Finding("compatibility", subject, "skipped", format_sentence(message))
            continue
        outcome, words = _ANSWERS.get(report["answer"], ("skipped", f"{{ep}} returned the unknown answer {report['answer']}."))
        message = words.format(ep=ep, device=attempt.devices or "this machine", written=loads[report["model"]].compatibility[ep])
        hint = "Use the variant for this device, or compile one." if outcome == "failed" else None
        yield Finding("compatibility", subject, outcome, message, "EPB645" if outcome == "failed" else None, hint)

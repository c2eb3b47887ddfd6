"""Files of onnxruntime-genai in an output: its configuration, and the user's own."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.archive.artifact import Artifact
from epbuild.core.digest import digest_of
from epbuild.core.errors import BuildError, PlanError, Problem, StepId
from epbuild.onnxfile.headers import read_header
from epbuild.output.files import GeneratedFile, OutputFile, Resolve, UserFile
from epbuild.output.genai import GenaiError, Stage, check_base, check_stages, genai_config
from epbuild.output.inference import inference_of
from epbuild.plan.outputs import GENAI_CONFIG
from epbuild.plan.steps import Emission, Genai, Plan
from epbuild.plan.target import PlannedTarget
from epbuild.verify.signature import signature

if TYPE_CHECKING:
    from epbuild.output.parts import PartContents

_HINT = "See docs/packages.md for what it has to hold."


def check_pipelines(plan: Plan) -> None:
    """Find what onnxruntime-genai would not run before anything is compiled.

    A group whose models are not here yet is checked when it is published. Raises PlanError.
    """
    problems: list[Problem] = []
    for emission in plan.emissions.values():
        for part in emission.parts:
            if part.genai is None:
                continue
            found = [member for ident in part.session_groups for member in plan.session_groups[ident].members]
            if all(member.fetched for member in found):
                share = len(part.session_groups) < len(found)
                sources = [_Source(member.name, signature(read_header(member.graph))) for member in found]
                stages = [_stage(part.genai, source, "model.onnx", part.target, share=share) for source in sources]
                problems += _problems(part.genai, stages, part.group)
    if problems:
        raise PlanError(*dict.fromkeys(problems))


def pipeline_artifacts(
    emission: Emission, contents: PartContents, digests: Mapping[Path, str], resolve: Resolve
) -> list[Artifact]:
    """The configuration of a part that is a pipeline, and the files that go with it. Raises BuildError."""
    part, genai = contents.part, contents.part.genai
    if genai is None:
        return []
    stages = [
        _stage(genai, source, part.models[source.name], part.target, share=contents.shared) for source in _sources(contents)
    ]
    return [resolve(file) for file in _pipeline_files(emission, genai, stages, part.folder, digests)]


def base_pipeline_artifacts(
    emission: Emission, contents: PartContents, folder: str, digests: Mapping[Path, str], resolve: Resolve
) -> list[Artifact]:
    """The same for the models as they were before compiling, which are below `folder` and run on the CPU EP. Raises BuildError."""
    genai = contents.part.genai
    if genai is None:
        return []
    stages = [_stage(genai, source, contents.part.base[source.name], None, share=False) for source in _sources(contents)]
    return [resolve(file) for file in _pipeline_files(emission, genai, stages, folder, digests)]


def _pipeline_files(
    emission: Emission, genai: Genai, stages: Sequence[Stage], folder: str, digests: Mapping[Path, str]
) -> Iterator[OutputFile]:
    try:
        data = _user_bytes(genai.config)
        if digest_of(data) != digests[genai.config]:
            message = f"the file {genai.config.name} changed while it was emitted"
            raise BuildError(Problem("EPB415", message, StepId(emission.id), "Nothing was kept; run the build again."))
        config = genai_config(_parsed(genai.config, data), stages)
    except GenaiError as error:
        raise BuildError(*(Problem("EPB419", text, StepId(emission.id), _HINT) for text in error.sentences)) from error
    yield OutputFile(posixpath.join(folder, GENAI_CONFIG), "genai-config", GeneratedFile(config))
    for name, path in genai.files.items():
        yield OutputFile(posixpath.join(folder, name), "asset", UserFile(path, digests[path]))


@dataclass(frozen=True)
class _Source:
    """A source model by its name, with its `inputs` and `outputs`."""

    name: str
    signature: Mapping[str, Sequence[Mapping[str, Any]]]


def _sources(contents: PartContents) -> list[_Source]:
    """The source models of a part, from the results of their session groups."""
    return [_Source(model["member"], model["source"]) for item in contents.made for model in item.result["models"]]


def _problems(genai: Genai, stages: Sequence[Stage], group: str) -> Iterator[Problem]:
    try:
        document = _parsed(genai.config, _user_bytes(genai.config))
        sentences = check_base(document) or check_stages(document, stages)
    except GenaiError as error:
        sentences = list(error.sentences)
    for text in sentences:
        yield Problem(
            "EPB227", f"onnxruntime-genai would not run the group '{group}' with {genai.config.name}: {text}", None, _HINT
        )


def _user_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GenaiError([f"{path.name} cannot be read as JSON: {error}"]) from error


def _parsed(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise GenaiError([f"{path.name} cannot be read as JSON: {error}"]) from error


def _stage(genai: Genai, source: _Source, file: str, target: PlannedTarget | None, *, share: bool) -> Stage:
    """A model as a stage, in the file that is named; `target` is None for one that was not compiled."""
    options: Mapping[str, str] = {}
    eps: list[tuple[str, Mapping[str, str]]] = []
    if target is not None:
        for ep in target.eps:
            found = inference_of(target, ep, share=share)
            options = found.session_options
            eps.append((ep.entry.ep, found.provider_options))
    return Stage(
        role=genai.roles[source.name],
        name=source.name,
        filename=file,
        inputs=tuple(value["name"] for value in source.signature["inputs"]),
        outputs=tuple(value["name"] for value in source.signature["outputs"]),
        session_options=options,
        provider_options=eps,
        genai_providers={ep.entry.ep: ep.entry.genai_provider or "" for ep in target.eps} if target is not None else {},
    )

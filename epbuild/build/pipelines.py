"""The files that onnxruntime-genai wants beside a group's models: its configuration for a target, and the user's own."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from epbuild.build.contents import LaidOut, Workbench, inference_of
from epbuild.emit import Content, GenaiError, Stage, check_base, check_stages, genai_config
from epbuild.errors import BuildError, PlanError, Problem, StepId
from epbuild.onnxfile import read_header
from epbuild.plan import GENAI_CONFIG, Emission, Genai, Member, Plan, PlannedTarget
from epbuild.verify import signature

_HINT = "See docs/packages.md for what it has to hold."


def check_pipelines(plan: Plan) -> None:
    """Find what onnxruntime-genai would not run before anything is compiled.

    A group whose models are not here yet is checked when it is laid out. Raises PlanError.
    """
    problems: list[Problem] = []
    for emission in plan.emissions.values():
        for part in emission.parts:
            if part.genai is None:
                continue
            found = [member for ident in part.session_groups for member in plan.session_groups[ident].members]
            if all(member.fetched for member in found):
                share = len(part.session_groups) < len(found)
                stages = [_stage(part.genai, member, "model.onnx", part.target, share=share) for member in found]
                problems += _problems(part.genai, stages, part.group)
    if problems:
        raise PlanError(*dict.fromkeys(problems))


def pipeline_contents(
    emission: Emission, laid: LaidOut, genai: Genai, bench: Workbench, digests: Mapping[Path, str]
) -> list[Content]:
    """The configuration of a part that is a pipeline, and the files that go with it. Raises BuildError."""
    part, share = laid.part, laid.made[0].group.share
    stages = [_stage(genai, member, part.models[member.name], part.target, share=share) for member in _members(laid)]
    return _written(emission, genai, stages, part.folder, bench, digests)


def base_pipeline_contents(
    emission: Emission, laid: LaidOut, genai: Genai, folder: str, bench: Workbench, digests: Mapping[Path, str]
) -> list[Content]:
    """The same for the models as they were before compiling, which lie below `folder` and run on the CPU EP. Raises BuildError."""
    stages = [_stage(genai, member, laid.part.base[member.name], None, share=False) for member in _members(laid)]
    return _written(emission, genai, stages, folder, bench, digests)


def _written(
    emission: Emission, genai: Genai, stages: Sequence[Stage], folder: str, bench: Workbench, digests: Mapping[Path, str]
) -> list[Content]:
    try:
        data = genai_config(_document(genai.config), stages)
    except GenaiError as error:
        raise BuildError(*(Problem("EPB419", text, StepId(emission.id), _HINT) for text in error.sentences)) from error
    files = [
        Content(posixpath.join(folder, name), "asset", path.stat().st_size, digests[path], path)
        for name, path in genai.files.items()
    ]
    return [bench.written(posixpath.join(folder, GENAI_CONFIG), "genai-config", data), *files]


def _members(laid: LaidOut) -> list[Member]:
    return [member for item in laid.made for member in item.group.members]


def _problems(genai: Genai, stages: Sequence[Stage], group: str) -> Iterator[Problem]:
    try:
        document = _document(genai.config)
        sentences = check_base(document) or check_stages(document, stages)
    except GenaiError as error:
        sentences = list(error.sentences)
    for text in sentences:
        yield Problem(
            "EPB227", f"onnxruntime-genai would not run the group '{group}' with {genai.config.name}: {text}", None, _HINT
        )


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GenaiError([f"{path.name} cannot be read as JSON: {error}"]) from error


def _stage(genai: Genai, member: Member, file: str, target: PlannedTarget | None, *, share: bool) -> Stage:
    """A model as a stage, in the file that is named; `target` is None for one that was not compiled."""
    values = signature(read_header(member.graph))
    options: Mapping[str, str] = {}
    eps: list[tuple[str, Mapping[str, str]]] = []
    if target is not None:
        for ep in target.eps:
            found = inference_of(target, ep, share=share)
            options = found.session_options
            eps.append((ep.entry.ep, found.provider_options))
    return Stage(
        role=genai.roles[member.name],
        name=member.name,
        filename=file,
        inputs=tuple(value["name"] for value in values["inputs"]),
        outputs=tuple(value["name"] for value in values["outputs"]),
        session_options=options,
        provider_options=eps,
    )

"""Files for onnxruntime-genai in an output: its configuration, and user's files."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from epbuild.archive.artifact import make_changed_error
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import BuildError, PlanError, Problem, StepId
from epbuild.core.safepath import read_regular
from epbuild.onnxfile.read.headers import read_header
from epbuild.output.files import OutputFile, UserFile
from epbuild.output.genai import GenaiError, Stage, build_genai_config, check_base, check_caches, check_stages
from epbuild.output.inference import build_inference
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.outputs import GENAI_CONFIG
from epbuild.plan.result import ModelSignature
from epbuild.plan.shapes import resolve_header
from epbuild.plan.steps import Emission, Genai, Part, Plan, SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.verify.signature import get_signature

_HINT = "See docs/guides/model-packages.md for the required contents."
_Check = Callable[[Mapping[str, Any], Sequence[Stage]], list[str]]


def check_pipelines(plan: Plan) -> None:
    """Check that onnxruntime-genai can run the pipelines of a plan, before the first compile. Raises PlanError.

    If models of a group have not been fetched yet, only the sizes in the recipe are checked. The rest is checked when the output is
    planned.
    """
    problems: list[Problem] = []
    for emission in plan.emissions.values():
        for part in emission.parts:
            if part.genai is not None:
                problems += _check_pipeline(plan, part, part.genai)
    if problems:
        raise PlanError(*dict.fromkeys(problems))


def _check_pipeline(plan: Plan, part: Part, genai: Genai) -> Iterator[Problem]:
    groups = [plan.session_groups[ident] for ident in part.session_groups]
    members = [member for group in groups for member in group.members]
    if not all(member.has_files for member in members):
        return _find_problems(genai, [_build_requested_stage(genai, member) for member in members], part.group, check_caches)
    sources = {member.name: get_signature(resolve_header(member, read_header(member.graph))) for member in members}
    stages = [
        _build_stage(genai, member.name, sources[member.name], "model.onnx", part.target if group.compiled else None, group)
        for group in groups
        for member in group.members
    ]
    return _find_problems(genai, _sort_stages(genai, stages), part.group, check_stages)


def plan_pipeline_files(
    emission: Emission, part: Part, made: Sequence[Made], digests: Mapping[Path, str], *, base: str | None = None
) -> Iterator[OutputFile]:
    """Plan the configuration and the other files of a part's pipeline, if the part has one. Raises BuildError.

    With `base`, the files are for the uncompiled models, which are in the folder `base` and run on the CPU EP.
    """
    genai = part.genai
    if genai is None:
        return
    names = part.models if base is None else part.base
    stages = []
    for group, model in ((item.group, model) for item in made for model in item.compiled.models):
        target = part.target if base is None and group.compiled else None
        stage = _build_stage(genai, model.member, model.source, names[model.member], target, group)
        # Compiled models may declare other output sizes than their sources.
        stages.append(replace(stage, shapes={**stage.shapes, **model.output_shapes}) if base is None else stage)
    folder = part.folder if base is None else base
    try:
        config = build_genai_config(
            _read_json(genai.config, digests[genai.config], StepId(emission.id)), _sort_stages(genai, stages)
        )
    except GenaiError as error:
        raise BuildError(*(Problem("EPB419", text, StepId(emission.id), _HINT) for text in error.sentences)) from error
    yield OutputFile(posixpath.join(folder, GENAI_CONFIG), "genai-config", config)
    for name, path in genai.files.items():
        yield OutputFile(posixpath.join(folder, name), "asset", UserFile(path, digests[path]))


def _sort_stages(genai: Genai, stages: Sequence[Stage]) -> list[Stage]:
    """Return stages in the order in which the recipe lists the models of each role."""
    by_name = {stage.name: stage for stage in stages}
    return [by_name[name] for name in genai.roles]


def _find_problems(genai: Genai, stages: Sequence[Stage], group: str, check: _Check) -> Iterator[Problem]:
    try:
        document = _read_json(genai.config)
        sentences = check_base(document) or check(document, stages)
    except GenaiError as error:
        sentences = list(error.sentences)
    for text in sentences:
        yield Problem("EPB227", f"onnxruntime-genai cannot run the group '{group}' with {genai.config.name}: {text}", None, _HINT)


def _build_requested_stage(genai: Genai, member: Member) -> Stage:
    """Return the stage of a model that has not been fetched. Only the sizes in the recipe are known."""
    shapes = {name: shape.sizes for name, shape in member.input_shapes.items()}
    return Stage(genai.roles[member.name], member.name, "model.onnx", tuple(shapes), (), shapes=shapes)


def _read_json(path: Path, digest: str | None = None, step: StepId | None = None) -> Any:
    """Read the JSON of a user's file. Raises GenaiError if it is not JSON, BuildError if its SHA-256 is not `digest`."""
    try:
        data = read_regular(path)
        if digest is not None and hash_bytes(data) != digest:
            raise make_changed_error(path.name, step)
        return json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GenaiError([f"cannot read {path.name} as JSON: {error}"]) from error


def _build_stage(
    genai: Genai, name: str, source: ModelSignature, file: str, target: PlannedTarget | None, group: SessionGroup
) -> Stage:
    """Return the stage of a model of `group` whose source has the signature `source`. `target` is None for an uncompiled model."""
    eps = target.eps if target is not None else ()
    needed = [build_inference(target, ep, share=group.share) for ep in eps] if target is not None else []
    return Stage(
        role=genai.roles[name],
        name=name,
        filename=file,
        inputs=tuple(value.name for value in source.inputs),
        outputs=tuple(value.name for value in source.outputs),
        shapes={value.name: value.shape for value in (*source.inputs, *source.outputs) if value.computed is UNSET},
        types={value.name: value.type for value in (*source.inputs, *source.outputs)},
        session_options=needed[-1].session_options if needed else {},
        run_options=target.run_options if target is not None else {},
        provider_options=[(ep.entry.ep, options.provider_options) for ep, options in zip(eps, needed, strict=True)],
        genai_providers={ep.entry.ep: ep.entry.genai_provider or "" for ep in eps},
    )

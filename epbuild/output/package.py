"""Layout `ort-model-package`: an ONNX Runtime model package of several parts.

Its manifest names the models, which it calls components, and the options that a session needs to run each model on each target.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.archive.artifact import FileEntry
from epbuild.catalog.catalog import CPU_EP
from epbuild.core.canonical import JsonFile
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.output.assets import move_weights, share_files
from epbuild.output.bom import BomModel, describe_base_model, list_base_models
from epbuild.output.files import MergedHeader, OutputDocument, OutputFile
from epbuild.output.genai_files import plan_pipeline_files
from epbuild.output.inference import build_inference
from epbuild.output.manifest import ManifestModel, find_data, find_references, resolve_beside
from epbuild.output.package_manifest import PackageVariant, build_package_manifest, check_package
from epbuild.output.parts import Arrangement, PartManifestFile, PlannedPart, describe_part, get_statement_path, plan_base_files
from epbuild.plan.outputs import BASE
from epbuild.plan.steps import Emission, Part
from epbuild.plan.target import PlannedTarget


class PackageManifestFile(Struct, frozen=True):
    """Manifest of a package, which lists all files of the package."""

    emission: Emission
    recipe: str
    parts: tuple[PlannedPart, ...]
    base_variants: tuple[PackageVariant, ...]
    shared: Mapping[str, str]
    """Paths of compiled models' files in shared assets, by the paths that the files would have in a part."""

    def render(self, files: Sequence[FileEntry], merged: Mapping[str, MergedHeader]) -> JsonFile:
        compiled = (variant for part in self.parts for variant in _list_target_variants(part, part.complete_models(merged)))
        variants = (*(move_weights(variant, self.shared) for variant in compiled), *self.base_variants)
        problems = check_package(files, variants)
        if problems:
            raise BuildError(*(Problem("EPB429", sentence, StepId(self.emission.id)) for sentence in problems))
        return build_package_manifest(
            name=self.emission.title,
            description=self.emission.description,
            variants=variants,
            recipe=self.recipe,
            files=files,
            provenance=get_statement_path(self.emission),
        )


class ModelPackage:
    """Layout of a model package, with a variant of each component for each target."""

    described_as: str | None = "package"

    def arrange(self, emission: Emission, parts: Sequence[PlannedPart], recipe: str, digests: Mapping[Path, str]) -> Arrangement:
        base_files = _plan_all_base_files(emission, parts, digests)
        base_variants = _list_base_variants(parts)
        weightless = [variant for part in parts for variant in _list_movable_variants(part)]
        weights = {path for variant in weightless for path in variant.weights}
        files = [file for part in parts for file in part.files]
        sharable = (*base_files, *(file for file in files if file.path in weights))
        shared_files, variants = share_files(sharable, (*base_variants, *weightless))
        base_variants, moved = variants[: len(base_variants)], variants[len(base_variants) :]
        shared = {
            old: new
            for before, after in zip(weightless, moved, strict=True)
            for old, new in zip(before.refers, after.refers, strict=True)
            if old != new
        }
        return Arrangement(
            files=(*shared_files, *(file for file in files if file.path not in weights)),
            part_manifests=tuple(
                OutputDocument(part.path(MANIFEST), "manifest", PartManifestFile(part, recipe, shared=shared)) for part in parts
            ),
            manifest=PackageManifestFile(emission, recipe, tuple(parts), base_variants, shared),
            base_models=tuple(_list_base_models(parts, base_variants)),
            shared=shared,
        )

    def describe(self, emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        return {"parts": {f"{part.group}/{part.target.name}": describe_part(part, digests) for part in emission.parts}}

    def find_omissions(self, emission: Emission) -> Iterator[str]:
        for target in {part.target.name: part.target for part in emission.parts}.values():
            for option, why in build_inference(target, target.eps[0], share=False).left_out.items():
                yield f"the option {option} of the target '{target.name}' is not in the package: {why}"


def _list_base_models(parts: Sequence[PlannedPart], variants: Sequence[PackageVariant]) -> Iterator[BomModel]:
    """Yield the uncompiled models, with their paths after files were moved to shared assets."""
    by_component = {
        name: (member, model.source or {})
        for item in parts
        for model in item.models
        for member, name in item.part.components.items()
        if member == model.name
    }
    for item in parts:
        if item.part.genai is not None:
            yield from list_base_models(item.models, item.part.base, _get_base_folder(item))
    for variant in variants:
        if variant.name == BASE and variant.model_path is not None:
            member, source = by_component[variant.component]
            yield describe_base_model(member, variant.model_path, source, variant.refers)


def _get_base_folder(planned: PlannedPart) -> str:
    """Return the folder of a package that contains a part's uncompiled models."""
    return posixpath.join(posixpath.dirname(planned.part.folder), BASE)


def _plan_all_base_files(emission: Emission, parts: Sequence[PlannedPart], digests: Mapping[Path, str]) -> Sequence[OutputFile]:
    """Plan the uncompiled models. Each model is planned once, however many targets it was compiled for."""
    found: dict[str, OutputFile] = {}
    for folder, planned in {_get_base_folder(item): item for item in parts if item.part.base}.items():
        pipeline = list(plan_pipeline_files(emission, planned.part, planned.made, digests, base=folder))
        files = [*pipeline, *plan_base_files(emission, planned, folder, pipeline)]
        found |= {file.path: file for file in files}
    return list(found.values())


def _list_target_variants(planned: PlannedPart, models: Sequence[ManifestModel]) -> Iterator[PackageVariant]:
    """Yield the variants of a part: one for a genai pipeline, or one per model."""
    part, target = planned.part, planned.part.target
    main = target.eps[0]
    sharing = {member.name for made in planned.made if made.group.share for member in made.group.members}
    sharing |= {part.merging.name} if part.merging is not None and planned.shared else set()
    if part.genai is not None:
        yield PackageVariant(
            component=part.group,
            name=target.name,
            folder=part.folder,
            model_file=None,
            ep=main.entry.ep,
            device=_get_device(target),
            compatibility=next((text for model in models if (text := model.compatibility.get(main.entry.ep))), ""),
            metadata={"manifest": planned.path(MANIFEST)},
        )
        return
    for model in models:
        options = build_inference(target, main, share=model.name in sharing)
        is_weightless = model.compiled and target.weightless_key is not None
        yield PackageVariant(
            component=part.components[model.name],
            name=target.name,
            folder=part.folder,
            model_file=model.file,
            ep=main.entry.ep if model.compiled else CPU_EP,
            device=_get_device(target) if model.compiled else None,
            compatibility=model.compatibility.get(main.entry.ep, ""),
            session_options=options.session_options if model.compiled else {},
            provider_options=options.provider_options if model.compiled else {},
            metadata={**_describe_origin(planned, model), **_describe_runs(planned.part, is_compiled=model.compiled)},
            refers=find_references(model, part.folder, planned.data),
            weights=find_data(model, part.folder, planned.data) if is_weightless else (),
        )


def _list_movable_variants(planned: PlannedPart) -> list[PackageVariant]:
    """Return the weightless variants of a part. Return none if other variants need some of their weights beside the models."""
    variants = list(_list_target_variants(planned, planned.models))
    needed = {path for variant in variants if not variant.weights for path in variant.refers}
    weightless = [variant for variant in variants if variant.weights]
    return [] if any(needed.intersection(variant.weights) for variant in weightless) else weightless


def _describe_origin(planned: PlannedPart, model: ManifestModel) -> dict[str, Any]:
    """Return the action key of a variant, the digest of its source, and the path of the part's manifest, which has all details."""
    return {
        "action_key": model.action_key,
        "manifest": planned.path(MANIFEST),
        **({"source_sha256": model.source["sha256"]} if model.source is not None else {}),
    }


def _describe_runs(part: Part, *, is_compiled: bool) -> dict[str, Any]:
    """Return the run options and adapters of a variant. Model packages have no fields for them, so applications pass them."""
    return {
        **({"run_options": dict(part.target.run_options)} if part.target.run_options and is_compiled else {}),
        **({"adapters": sorted(part.adapters)} if part.adapters else {}),
    }


def _list_base_variants(parts: Sequence[PlannedPart]) -> tuple[PackageVariant, ...]:
    """Return the uncompiled variant of each component."""
    found: dict[str, PackageVariant] = {}
    for item in parts:
        folder = _get_base_folder(item)
        if item.part.genai is not None:
            if item.part.base:
                found.setdefault(item.part.group, PackageVariant(item.part.group, BASE, folder, None, CPU_EP))
            continue
        for member, name in item.part.base.items():
            component = item.part.components[member]
            source = next(model.source for model in item.models if model.name == member) or {}
            variant = PackageVariant(
                component=component,
                name=BASE,
                folder=folder,
                model_file=name,
                ep=CPU_EP,
                refers=resolve_beside(posixpath.join(folder, name), source["external_data"]),
                # Compiled models stay together, so that readers other than ONNX Runtime's package API find them.
                movable=True,
            )
            found.setdefault(component, variant)
    return tuple(found.values())


def _get_device(target: PlannedTarget) -> str | None:
    """Return the device type that the models are for, from the recipe or else the EP's first type.

    Return None for an EP that is not a plugin. ONNX Runtime knows no devices of such an EP, and would never
    select a variant with a device.
    """
    main = target.eps[0]
    if main.entry.kind != "plugin":
        return None
    return main.device.type or next(iter(main.entry.devices), None)

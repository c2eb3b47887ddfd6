"""The layout `ort-model-package`: an ONNX Runtime model package of several parts.

It has which component is which model, and what a session needs to run it on each target.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epbuild.archive.artifact import Artifact
from epbuild.catalog.catalog import CPU_EP
from epbuild.core.canonical import JsonFile
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.output.assets import share_files
from epbuild.output.files import OutputFile, Resolve
from epbuild.output.inference import inference_of
from epbuild.output.manifest import ManifestModel, beside, named_files
from epbuild.output.package_manifest import PackageVariant, check_package, package_manifest
from epbuild.output.parts import Inputs, PartContents, base_artifacts, part_document, part_manifest
from epbuild.plan.outputs import BASE, MANIFEST
from epbuild.plan.steps import Emission
from epbuild.plan.target import PlannedTarget

if TYPE_CHECKING:
    from epbuild.output.bom import BomModel


class ModelPackage:
    """The files of a package, and its variants."""

    described_as: str | None = "package"

    def __init__(
        self,
        emission: Emission,
        parts: Sequence[PartContents],
        recipe: str,
        artifacts: Sequence[Artifact],
        variants: Sequence[PackageVariant],
    ) -> None:
        self.parts = tuple(parts)
        self.artifacts = tuple(artifacts)
        self._emission = emission
        self._recipe = recipe
        self._variants = tuple(variants)

    @classmethod
    def of(cls, emission: Emission, parts: Sequence[PartContents], inputs: Inputs, resolve: Resolve) -> Self:
        """The package of these parts.

        Raises BuildError when it would promise what it does not hold, which ONNX Runtime notices no sooner than a session is made.
        """
        recipe = inputs.recipe.name
        artifacts: Sequence[Artifact] = _bases(emission, parts, inputs, resolve)
        for part in parts:
            manifest = part_manifest(part, part.artifacts, recipe)
            artifacts = [*artifacts, *part.artifacts, resolve(OutputFile(part.path(MANIFEST), "manifest", manifest))]
        variants: Sequence[PackageVariant] = (*(variant for part in parts for variant in _compiled(part)), *_not_compiled(parts))
        artifacts, variants = share_files(artifacts, variants)
        wrong = check_package(artifacts, variants)
        if wrong:
            raise BuildError(*(Problem("EPB429", sentence, StepId(emission.id)) for sentence in wrong))
        return cls(emission, parts, recipe, artifacts, variants)

    def manifest(self, artifacts: Sequence[Artifact], provenance: str | None) -> JsonFile:
        return package_manifest(
            name=self._emission.title,
            description=self._emission.description,
            variants=self._variants,
            recipe=self._recipe,
            artifacts=artifacts,
            provenance=provenance,
        )

    def base_models(self) -> list[BomModel]:
        """The models that were not compiled, where they are now."""
        from epbuild.output.bom import base_model, base_models

        by_component = {
            name: (member, model.source or {})
            for item in self.parts
            for model in item.models
            for member, name in item.part.components.items()
            if member == model.name
        }
        found = [
            model
            for item in self.parts
            if item.part.genai is not None
            for model in base_models(item.models, item.part.base, _base_folder(item))
        ]
        for variant in self._variants:
            if variant.name == BASE and variant.model_path is not None:
                member, source = by_component[variant.component]
                found.append(base_model(member, variant.model_path, source, variant.refers))
        return found

    @staticmethod
    def document(emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        return {"parts": {f"{part.group}/{part.target.name}": part_document(part, digests) for part in emission.parts}}

    @staticmethod
    def notes(emission: Emission) -> Iterator[str]:
        """A sentence for each option that the package does not hold, and why."""
        for target in {part.target.name: part.target for part in emission.parts}.values():
            for option, why in inference_of(target, target.eps[0], share=False).left_out.items():
                yield f"the option {option} of '{target.name}' is not in the package: {why}"


def _base_folder(contents: PartContents) -> str:
    """The folder of a package that has a part's models as they were before compiling."""
    return posixpath.join(posixpath.dirname(contents.part.folder), BASE)


def _bases(emission: Emission, parts: Sequence[PartContents], inputs: Inputs, resolve: Resolve) -> list[Artifact]:
    """The models as they were before compiling, each once, whatever number of targets they were compiled for."""
    found: dict[str, Artifact] = {}
    for item in {_base_folder(item): item for item in parts if item.part.base}.values():
        folder = _base_folder(item)
        pipeline: list[Artifact] = []
        if item.part.genai is not None:
            from epbuild.output.genai_files import pipeline_artifacts

            pipeline = pipeline_artifacts(emission, item, inputs.files, resolve, base=folder)
        artifacts = [*pipeline, *base_artifacts(emission, item, folder, resolve, pipeline)]
        found |= {artifact.path: artifact for artifact in artifacts}
    return list(found.values())


def _compiled(contents: PartContents) -> Iterator[PackageVariant]:
    part, target = contents.part, contents.part.target
    main = target.eps[0]
    options = inference_of(target, main, share=contents.shared)
    if part.genai is not None:
        yield PackageVariant(
            component=part.group,
            name=target.name,
            folder=part.folder,
            model_file=None,
            ep=main.entry.ep,
            device=_device(target),
            compatibility=next((text for model in contents.models if (text := model.compatibility.get(main.entry.ep))), ""),
            metadata={"manifest": contents.path(MANIFEST)},
        )
        return
    for model in contents.models:
        yield PackageVariant(
            component=part.components[model.name],
            name=target.name,
            folder=part.folder,
            model_file=model.file,
            ep=main.entry.ep,
            device=_device(target),
            compatibility=model.compatibility.get(main.entry.ep, ""),
            session_options=options.session_options,
            provider_options=options.provider_options,
            metadata=_origin(contents, model),
            refers=named_files(model, part.folder, contents.data),
        )


def _origin(contents: PartContents, model: ManifestModel) -> dict[str, Any]:
    """Where a variant came from: its key and its source by their digests; the manifest in its folder has the rest."""
    return {
        "action_key": model.action_key,
        "manifest": contents.path(MANIFEST),
        **({"source_sha256": model.source["sha256"]} if model.source is not None else {}),
    }


def _not_compiled(parts: Sequence[PartContents]) -> Iterator[PackageVariant]:
    seen = set()
    for item in parts:
        if item.part.genai is not None and item.part.base and item.part.group not in seen:
            seen.add(item.part.group)
            yield PackageVariant(item.part.group, BASE, _base_folder(item), None, CPU_EP)
        if item.part.genai is not None:
            continue
        for member, name in item.part.base.items():
            component = item.part.components[member]
            if component in seen:
                continue
            seen.add(component)
            source = next(model.source for model in item.models if model.name == member) or {}
            folder = _base_folder(item)
            yield PackageVariant(
                component=component,
                name=BASE,
                folder=folder,
                model_file=name,
                ep=CPU_EP,
                refers=beside(posixpath.join(folder, name), source["external_data"]),
                # What is compiled stays together, so that other readers than ONNX Runtime's package API find it.
                movable=True,
            )


def _device(target: PlannedTarget) -> str | None:
    """The type of device that the models are for: what the recipe asks for, else what the EP is made for.

    ONNX Runtime knows no devices of EPs that are not plugins, and selects no variant of theirs that names one.
    """
    main = target.eps[0]
    if main.entry.kind != "plugin":
        return None
    return main.device.type or next(iter(main.entry.devices), None)

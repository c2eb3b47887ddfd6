"""An output as an ONNX Runtime model package: which component is which model, and what a session needs to run it on each target."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epbuild.archive.artifact import Artifact
from epbuild.catalog.catalog import CPU_EP
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.output.assets import share_files
from epbuild.output.contents import Bench, LaidOut, base_contents, inference_of, part_manifest
from epbuild.output.emitted import EmittedModel, base_model, base_models
from epbuild.output.jsonfile import JsonFile
from epbuild.output.manifest import ManifestModel
from epbuild.output.package import Variant, check_package, package_manifest
from epbuild.plan.outputs import BASE, MANIFEST
from epbuild.plan.steps import Emission, PlannedTarget


@dataclass(frozen=True)
class Package:
    """The files of a package, less its manifest and what is written about them all, and its variants."""

    emission: Emission
    artifacts: tuple[Artifact, ...]
    variants: tuple[Variant, ...]
    laid: tuple[LaidOut, ...]

    def manifest(self, artifacts: Sequence[Artifact], recipe: str, provenance: str | None) -> JsonFile:
        """The manifest, which lists `artifacts`."""
        return package_manifest(
            name=self.emission.title,
            description=self.emission.description,
            variants=self.variants,
            recipe=recipe,
            artifacts=artifacts,
            provenance=provenance,
        )

    @property
    def left_out(self) -> list[str]:
        """A sentence for each option that the package does not hold, and why."""
        targets = {item.part.target.name: item.part.target for item in self.laid}
        return [
            f"the option {option} of '{name}' is not in the package: {why}"
            for name, target in targets.items()
            for option, why in inference_of(target, target.eps[0], share=False).left_out.items()
        ]

    def base_models(self) -> list[EmittedModel]:
        """The models that were not compiled, where they lie now."""
        by_component = {
            name: (member, model.source or {})
            for item in self.laid
            for model in item.models
            for member, name in item.part.components.items()
            if member == model.name
        }
        found = [
            model
            for item in self.laid
            if item.part.genai is not None
            for model in base_models(item.models, item.part.base, _base_folder(item))
        ]
        for variant in self.variants:
            if variant.name == BASE and variant.model_path is not None:
                member, source = by_component[variant.component]
                found.append(base_model(member, variant.model_path, source, variant.refers))
        return found


def package_of(
    emission: Emission,
    laid: Sequence[LaidOut],
    parts: Sequence[Sequence[Artifact]],
    bench: Bench,
    recipe: str,
    digests: Mapping[Path, str],
) -> Package:
    """The package of an output, of which `parts` has the files of each part; `digests` are those of the user's files.

    Raises BuildError when the package would promise what it does not hold, which ONNX Runtime notices no sooner than a session is made.
    """
    artifacts: Sequence[Artifact] = _bases(emission, laid, bench, digests)
    for item, mine in zip(laid, parts, strict=True):
        manifest = part_manifest(item, mine, recipe, None)
        artifacts = [*artifacts, *mine, bench.written(item.path(MANIFEST), "manifest", manifest)]
    variants: Sequence[Variant] = (*(variant for item in laid for variant in _compiled(item)), *_not_compiled(laid))
    artifacts, variants = share_files(artifacts, variants)
    wrong = check_package(artifacts, variants)
    if wrong:
        raise BuildError(*(Problem("EPB429", sentence, StepId(emission.id)) for sentence in wrong))
    return Package(emission, tuple(artifacts), tuple(variants), tuple(laid))


def _base_folder(laid: LaidOut) -> str:
    """The folder of a package that has a part's models as they were before compiling."""
    return posixpath.join(posixpath.dirname(laid.part.folder), BASE)


def _bases(emission: Emission, laid: Sequence[LaidOut], bench: Bench, digests: Mapping[Path, str]) -> list[Artifact]:
    """The models as they were before compiling, each once, whatever number of targets they were compiled for."""
    found: dict[str, Artifact] = {}
    for item in {_base_folder(item): item for item in laid if item.part.base}.values():
        beside: list[Artifact] = []
        if item.part.genai is not None:
            from epbuild.output.pipelines import base_pipeline_contents

            beside = base_pipeline_contents(emission, item, item.part.genai, _base_folder(item), bench, digests)
        artifacts = [*beside, *base_contents(emission, item, _base_folder(item), bench, beside)]
        found |= {artifact.path: artifact for artifact in artifacts}
    return list(found.values())


def _compiled(laid: LaidOut) -> Iterator[Variant]:
    part, target = laid.part, laid.part.target
    main = target.eps[0]
    options = inference_of(target, main, share=laid.made[0].group.share)
    if part.genai is not None:
        yield Variant(
            component=part.group,
            name=target.name,
            folder=part.folder,
            model_file=None,
            ep=main.entry.ep,
            device=_device(target),
            compatibility=next((text for model in laid.models if (text := model.compatibility.get(main.entry.ep))), ""),
            metadata={"manifest": laid.path(MANIFEST)},
        )
        return
    for model in laid.models:
        yield Variant(
            component=part.components[model.name],
            name=target.name,
            folder=part.folder,
            model_file=model.file,
            ep=main.entry.ep,
            device=_device(target),
            compatibility=model.compatibility.get(main.entry.ep, ""),
            session_options=options.session_options,
            provider_options=options.provider_options,
            metadata=_origin(laid, model),
            refers=_refers(laid, model),
        )


def _origin(laid: LaidOut, model: ManifestModel) -> dict[str, Any]:
    """Where a variant came from: its key and its source by their digests; the manifest in its folder says the rest."""
    return {
        "action_key": model.action_key,
        "manifest": laid.path(MANIFEST),
        **({"source_sha256": model.source["sha256"]} if model.source is not None else {}),
    }


def _not_compiled(laid: Sequence[LaidOut]) -> Iterator[Variant]:
    seen = set()
    for item in laid:
        if item.part.genai is not None and item.part.base and item.part.group not in seen:
            seen.add(item.part.group)
            yield Variant(item.part.group, BASE, _base_folder(item), None, CPU_EP)
        if item.part.genai is not None:
            continue
        for member, name in item.part.base.items():
            component = item.part.components[member]
            if component in seen:
                continue
            seen.add(component)
            source = next(model.source for model in item.models if model.name == member) or {}
            folder = _base_folder(item)
            beside = posixpath.dirname(posixpath.join(folder, name))
            yield Variant(
                component=component,
                name=BASE,
                folder=folder,
                model_file=name,
                ep=CPU_EP,
                refers=tuple(posixpath.join(beside, location) for location in source["external_data"]),
                # What is compiled stays together, so that other readers than ONNX Runtime's package API find it.
                movable=True,
            )


def _device(target: PlannedTarget) -> str | None:
    """The type of device that the models are for: what the recipe asks for, else what the EP is made for.

    ONNX Runtime knows no devices of EPs that are no plugins, and selects no variant of theirs that names one.
    """
    main = target.eps[0]
    if main.entry.kind != "plugin":
        return None
    return main.device.type or next(iter(main.entry.devices), None)


def _refers(laid: LaidOut, model: ManifestModel) -> tuple[str, ...]:
    """The files of the package that a model names, each once."""
    folder = posixpath.dirname(laid.path(model.file))
    named = [str(node["reference"]) for node in model.nodes if "reference" in node]
    data: Mapping[str, Any] = {item["member"]: item["data"] for made in laid.made for item in made.result["models"]}
    members = [member["name"] for member in model.merged] or [model.name]
    beside = [*named, *(location for member in members for location in data[member])]
    return tuple(dict.fromkeys(posixpath.normpath(posixpath.join(folder, name)) for name in beside))

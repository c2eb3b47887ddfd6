"""Parts of an output: the files of a group for a target, and their manifest."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile
from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.core.redact import concealed_values
from epbuild.core.typed_json import to_json
from epbuild.output.arrangement import arrange
from epbuild.output.files import FileSource, OutputFile, RelinkedModel, Resolve, UserFile
from epbuild.output.manifest import ManifestModel, PartManifest, beside
from epbuild.output.merging import MergedModel, MergedModels, draft_names, merged_key, read_merged, settings_of
from epbuild.plan.made import Made, prepared_by
from epbuild.plan.outputs import MANIFEST
from epbuild.plan.request import ep_document
from epbuild.plan.result import ContextNode
from epbuild.plan.steps import Emission, Genai, Merging, Part
from epbuild.recipe.model import Recipe


class Inputs(Struct, frozen=True):
    """What goes into outputs beside the results of session groups: the recipe, and the digests of the user's files that count."""

    recipe: Recipe
    files: Mapping[Path, str]

    @property
    def of_the_recipe(self) -> dict[str, str]:
        """The digests of the files that the recipe was read from, by their names as seen from its folder."""
        return {Path(os.path.relpath(path, self.recipe.directory)).as_posix(): self.files[path] for path in self.recipe.files}


class PartContents(Struct, frozen=True):
    """A part with its artifacts, whose paths are below the output's root, and its models as the manifest has them."""

    part: Part
    made: tuple[Made, ...]
    models: tuple[ManifestModel, ...]
    artifacts: tuple[Artifact, ...]

    def path(self, name: str) -> str:
        """The path below the output's root of what is called `name` in the part."""
        return posixpath.join(self.part.folder, name)

    @property
    def data(self) -> Mapping[str, Sequence[str]]:
        """The external data that lies beside its models, by the member."""
        return {model.member: model.data for made in self.made for model in made.compiled.models}

    @property
    def shared(self) -> bool:
        """Whether its models share weights."""
        return self.made[0].group.share


class ArrangedPart(Struct, frozen=True):
    """A part with its files, less its manifest, before any of them is made; its `models` where they are not merged."""

    part: Part
    made: tuple[Made, ...]
    files: tuple[OutputFile, ...]
    models: tuple[ManifestModel, ...]

    @classmethod
    def of(cls, emission: Emission, part: Part, made: Sequence[Made]) -> ArrangedPart:
        """The part of what was `made`. Raises BuildError when two files would get one path."""
        names = part.models if part.merging is None else draft_names(part, part.merging)
        files = arrange((item.compiled for item in made), names, part.binaries, MANIFEST, emission.id)
        return cls(part, tuple(made), files, tuple(_models(part, made, files)) if part.merging is None else ())

    def contents(self, resolve: Resolve) -> PartContents:
        """The part with its artifacts, less its manifest. Raises what `resolve` raises."""
        part, merging = self.part, self.part.merging
        if merging is None:
            return PartContents(part, self.made, self.models, tuple(resolve(_below(part, file)) for file in self.files))
        path = part.models[merging.name]
        merged = resolve(_below(part, OutputFile(path, "model", MergedModels(part, merging, self.files))))
        drafts = set(draft_names(part, merging).values())
        others = tuple(resolve(_below(part, file)) for file in self.files if file.path not in drafts)
        # What will be in the model is read from the model, once that is there.
        facts = read_merged(merged.file) if merged.file is not None else MergedModel()
        return PartContents(part, self.made, (_merged_model(part, merging, self.made, facts),), (*others, merged))


def _below(part: Part, file: OutputFile) -> OutputFile:
    return replace(file, path=f"{part.folder}/{file.path}") if part.folder else file


def base_artifacts(
    emission: Emission, contents: PartContents, folder: str, resolve: Resolve, others: Sequence[Artifact]
) -> list[Artifact]:
    """The part's models as they were before compiling, below `folder`, with that of their external data which is not there already.

    `others` are the files that are there already: an EP may have left external data in its place. Raises BuildError when one of these
    files would be in the place of another one.
    """
    if not contents.part.base:
        return []
    taken = {artifact.path.casefold(): artifact for artifact in others}
    found = []
    for item in contents.made:
        for member, listed in zip(item.group.members, item.document["members"], strict=True):
            name = contents.part.base.get(member.name)
            if name is None:
                continue
            path = posixpath.join(folder, name)
            # A prepared model is a result: its blobs may be lost, or still in a remote cache.
            stored = {blob.digest: blob for made in item.prepared(member.name)[-1:] for blob in made.result.artifacts.values()}
            files = [OutputFile(path, "base-model", _base_source(member.graph, listed["graph"], stored))]
            for location, file in member.external.items():
                [place] = beside(path, [location])
                files.append(OutputFile(place, "base-data", _base_source(file, listed["external"][location], stored)))
            for artifact in map(resolve, files):
                other = taken.setdefault(artifact.path.casefold(), artifact)
                if other is artifact:
                    found.append(artifact)
                elif (other.path, other.sha256) != (artifact.path, artifact.sha256):
                    raise _in_the_way(emission, f"two different files would be written to '{artifact.path}'")
    for artifact in taken.values():
        inside = next((str(above) for above in PurePosixPath(artifact.path).parents if str(above).casefold() in taken), None)
        if inside is not None:
            raise _in_the_way(emission, f"'{inside}' would be a file and the folder of '{artifact.path}'")
    return found


def _base_source(file: Path, digest: str, stored: Mapping[str, Blob]) -> FileSource:
    return stored.get(digest) or UserFile(file, digest)


def _in_the_way(emission: Emission, what: str) -> BuildError:
    hint = "Put ${model} into the folder of 'base', and let it hold nothing else."
    return BuildError(Problem("EPB422", f"with the models as they were before compiling, {what}", StepId(emission.id), hint))


def in_order(artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """The contents by their paths. Raises ValueError when two have one."""
    ordered = tuple(sorted(artifacts, key=lambda artifact: artifact.path.split("/")))
    if len({artifact.path.casefold() for artifact in ordered}) < len(ordered):
        raise ValueError("two files have one path")
    return ordered


def part_manifest(contents: PartContents, artifacts: Sequence[Artifact], recipe: str, provenance: str | None = None) -> JsonFile:
    """The manifest of a part; `artifacts` are all the files of it, and their paths there are relative to the part's folder."""
    prefix = f"{contents.part.folder}/" if contents.part.folder else ""
    document = contents.made[0].document
    manifest = PartManifest(
        recipe=recipe,
        group=contents.part.group,
        share_weights=contents.shared,
        target=_target(contents.part),
        toolchain={name: document["toolchain"][name] for name in ("python", "platform", "distributions")},
        custom_ops=_custom_ops(document),
        models=contents.models,
        files=[replace(item, path=item.path.removeprefix(prefix)) if prefix else item for item in in_order(artifacts)],
        provenance=provenance,
    )
    return manifest.file


def part_document(part: Part, digests: Mapping[Path, str]) -> dict[str, Any]:
    """Why the files of a part are what they are, in the words of the recipe; `digests` are those of the user's files."""
    genai = part.genai
    return {
        "folder": part.folder,
        "models": dict(part.models),
        "context binaries": {member: dict(names) for member, names in part.binaries.items()},
        "options": {ep.entry.ep: ep.lasting_options for ep in part.target.eps},
        "session_options": dict(part.target.session_options),
        "environment": concealed_values(part.target.environment),
        "unchecked": list(part.target.unchecked),
        **({"not reproducible": part.known_to_differ} if part.known_to_differ else {}),
        **({"base": dict(part.base)} if part.base else {}),
        **({"components": dict(part.components)} if part.components else {}),
        **({"merge": settings_of(part.merging)} if part.merging is not None else {}),
        **({"genai": _genai(genai, digests)} if genai is not None else {}),
    }


def _genai(genai: Genai, digests: Mapping[Path, str]) -> dict[str, Any]:
    files = {name: digests[path] for name, path in genai.files.items()}
    return {"config": digests[genai.config], "roles": dict(genai.roles), "files": files}


def _custom_ops(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """The custom operators of a key's document, as an application looks for them."""
    return [
        {"library": ops["name"], "sha256": ops["library"]} if ops["library"] else {"module": ops["name"]}
        for ops in document.get("custom_ops", ())
    ]


def _models(part: Part, made: Sequence[Made], files: Sequence[OutputFile]) -> list[ManifestModel]:
    references = {file.path: file.source.references for file in files if isinstance(file.source, RelinkedModel)}
    return [
        ManifestModel(
            name=model.member,
            file=part.models[model.member],
            action_key=item.key,
            source=sources[model.member],
            nodes=[_relinked(node, references.get(part.models[model.member], {})) for node in model.nodes],
            fallback_nodes=model.fallback_nodes,
            compatibility=model.compatibility,
            left=to_json(model.left),
        )
        for item, sources in ((item, _sources(item)) for item in made)
        for model in item.compiled.models
    ]


def _merged_model(part: Part, merging: Merging, made: Sequence[Made], merged: MergedModel) -> ManifestModel:
    members = [(item, model) for item in made for model in item.compiled.models]
    sources = {name: source for item in made for name, source in _sources(item).items()}
    return ManifestModel(
        name=merging.name,
        file=part.models[merging.name],
        action_key=merged_key(merging, {model.member: item.key for item, model in members}),
        source=None,
        nodes=merged.nodes,
        fallback_nodes=sum(model.fallback_nodes for _, model in members),
        compatibility=merged.compatibility,
        left=[
            to_json(replace(left, node=f"{merging.prefixes[model.member]}{left.node}" if left.node else ""))
            for _, model in members
            for left in model.left
        ],
        merged=[{"name": model.member, "action_key": item.key, "source": sources[model.member]} for item, model in members],
    )


def _target(part: Part) -> dict[str, Any]:
    target = part.target
    return {
        "name": target.name,
        "eps": [
            {
                "ep": ep.entry.ep,
                "module": ep.entry.module,
                "device": ep_document(ep)["device"],
                "provider_options": ep.lasting_options,
            }
            for ep in target.eps
        ],
        "session_options": dict(target.session_options),
        "environment": concealed_values(target.environment),
        "unchecked_options": list(target.unchecked),
        **({} if part.reproducible else {"reproducible": "no"}),
        **({"not_reproducible": part.known_to_differ} if part.known_to_differ else {}),
    }


def _sources(made: Made) -> dict[str, dict[str, Any]]:
    """What a manifest has of the source of each member of a session group, by its name."""
    signatures = {model.member: model.source for model in made.compiled.models}
    return {
        member.name: {
            "sha256": listed["graph"],
            "external_data": listed["external"],
            **({"model": member.model.name} if member.model.name != member.name else {}),
            **({"sizes": listed["inputs"]} if "inputs" in listed else {}),
            **prepared_by(made.prepared(member.name)),
            **to_json(signatures[member.name]),
        }
        for member, listed in zip(made.group.members, made.document["members"], strict=True)
    }


def _relinked(node: ContextNode, references: Mapping[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = to_json(node)
    return document if node.reference is None else {**document, "reference": references.get(node.reference, node.reference)}

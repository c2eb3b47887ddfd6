"""Parts of an output: the files of a group for a target, and their manifest."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import JsonFile
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.core.redact import conceal_values
from epbuild.output.bom import BomModel
from epbuild.output.files import (
    ENCRYPTION_FORMAT,
    ContentRef,
    Document,
    EncryptedFile,
    MergedHeader,
    MergedModel,
    OutputDocument,
    OutputFile,
    RelinkedModel,
    UserFile,
)
from epbuild.output.genai_files import plan_pipeline_files
from epbuild.output.manifest import ManifestModel, PartManifest, resolve_beside
from epbuild.output.merging import describe_merging, name_drafts
from epbuild.output.part_models import (
    add_measured_figures,
    add_numbers,
    describe_merged_model,
    describe_target,
    list_custom_ops,
    list_models,
)
from epbuild.plan.made import Made
from epbuild.plan.outputs import PROVENANCE
from epbuild.plan.result import CompileResult, ModelResult
from epbuild.plan.steps import Emission, Genai, Part
from epbuild.recipe.model import Encryption


class PlannedPart(Struct, frozen=True):
    """Part of an output, with its files except the manifest, and its models as in the manifest. Paths are below the output's root."""

    part: Part
    made: tuple[Made, ...]
    models: tuple[ManifestModel, ...]
    """Models of the manifest. A merged model lacks its nodes and compatibility strings: see `complete_models`."""
    files: tuple[OutputFile, ...]

    def path(self, name: str) -> str:
        """Return the path of the part's file `name`, relative to the output's root."""
        return posixpath.join(self.part.folder, name)

    @property
    def data(self) -> Mapping[str, Sequence[str]]:
        """Locations of the external data beside the models, by member."""
        return {model.member: model.data for made in self.made for model in made.compiled.models}

    @property
    def shared(self) -> bool:
        """True if models of the part share weights."""
        return any(made.group.share for made in self.made)

    def complete_models(self, merged: Mapping[str, MergedHeader]) -> tuple[ManifestModel, ...]:
        """Return the models, after completing a merged model from the header of its file in `merged`."""
        if self.part.merging is None:
            return self.models
        (model,) = self.models
        header = merged.get(self.path(model.file))
        return self.models if header is None else (replace(model, nodes=header.nodes, compatibility=header.compatibility),)


class PartManifestFile(Struct, frozen=True):
    """Manifest of a part, which lists files by their paths relative to the part's folder.

    For a file in a shared asset, the path is where the file would be without the asset.
    """

    part: PlannedPart
    recipe: str
    provenance: str | None = None
    """Path of the provenance file for the files and the manifest."""
    encryption: Encryption | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    """Paths of files in shared assets, by the paths that the files would have in a part."""

    def render(self, files: Sequence[FileEntry], merged: Mapping[str, MergedHeader]) -> JsonFile:
        planned, part = self.part, self.part.part
        prefix = f"{part.folder}/" if part.folder else ""
        document = planned.made[0].document
        by_path = {file.path: file for file in files} if self.shared else {}
        moved = [
            by_path[place]._replace(path=path, role="external-data", shared=posixpath.relpath(place, part.folder))
            for path, place in self.shared.items()
            if path.startswith(prefix)
        ]
        manifest = PartManifest(
            recipe=self.recipe,
            group=part.group,
            share_weights=planned.shared,
            target=describe_target(part),
            toolchain={name: document["toolchain"][name] for name in ("python", "platform", "distributions")},
            custom_ops=list_custom_ops(document),
            models=planned.complete_models(merged),
            files=[
                file._replace(path=file.path.removeprefix(prefix)) for file in (*files, *moved) if file.path.startswith(prefix)
            ],
            provenance=self.provenance,
            encryption=describe_encryption(self.encryption) if self.encryption is not None else None,
        )
        return manifest.file


class Arrangement(Struct, frozen=True):
    """Parts of an output as arranged by a layout: the files, the manifests, and the uncompiled models."""

    files: tuple[OutputFile, ...]
    manifest: Document
    base_models: tuple[BomModel, ...]
    part_manifests: tuple[OutputDocument, ...] = ()
    """Manifests of the parts. Empty if the output has a single part, whose manifest is the output's own."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Paths of compiled models' files in shared assets, by the paths that the files would have in a part."""


def get_statement_path(emission: Emission) -> str | None:
    """Return the path of the provenance file in an output; None if the output has no such file, or if it is beside an archive."""
    return PROVENANCE if emission.provenance and not emission.is_file else None


def plan_part(
    emission: Emission, part: Part, made: Sequence[Made], checks: Sequence[Made], digests: Mapping[Path, str]
) -> PlannedPart:
    """Plan the files and the models of a part from the results `made`. `checks` has the results of verifications and measurements.

    `digests` has the SHA-256 of the user's files. Raises BuildError if two files would have one path, or if onnxruntime-genai would not run
    the part.
    """
    merging, drafts = part.merging, {}
    if merging is not None:
        drafts = name_drafts(part, merging)
    arranged = arrange((item.compiled for item in made), drafts or part.models, part.binaries, MANIFEST, emission.id)
    if merging is None:
        files, models = arranged, list_models(part, made, arranged)
    else:
        content = MergedModel(part, merging, describe_merging(merging), drafts, arranged)
        others = (file for file in arranged if file.path not in drafts.values())
        files = (*others, OutputFile(part.models[merging.name], "model", content))
        models = [describe_merged_model(part, merging, made)]
    if part.verification is not None:
        models = add_numbers(models, next(item for item in checks if item.action.id == part.verification))
    if part.measurement is not None:
        models = add_measured_figures(models, next(item for item in checks if item.action.id == part.measurement))
    placed = [replace(file, path=posixpath.join(part.folder, file.path)) for file in files]
    adapters = (
        OutputFile(posixpath.join(part.folder, name), "adapter", UserFile(path, digests[path]))
        for name, path in part.adapters.items()
    )
    added = (*plan_pipeline_files(emission, part, made, digests), *adapters)
    return PlannedPart(part, tuple(made), tuple(models), (*placed, *added))


def plan_base_files(emission: Emission, planned: PlannedPart, folder: str, others: Sequence[OutputFile]) -> list[OutputFile]:
    """Plan the part's uncompiled models below `folder`, with external data that is not among `others`.

    Raises BuildError if two different files would have one path. This happens if an EP kept external data at its location.
    """
    if not planned.part.base:
        return []
    taken = {file.path.casefold(): file for file in others}
    found = []
    for item in planned.made:
        for member, listed in zip(item.group.members, item.document["members"], strict=True):
            name = planned.part.base.get(member.name)
            if name is None:
                continue
            path = posixpath.join(folder, name)
            # A prepared model is a result: its blobs may be lost, or still in a remote cache.
            stored = {blob.digest: blob for made in item.prepared(member.name)[-1:] for blob in made.result.artifacts.values()}
            files = [OutputFile(path, "base-model", _find_base_content(member.graph, listed["graph"], stored))]
            for location, data in member.external.items():
                [place] = resolve_beside(path, [location])
                files.append(OutputFile(place, "base-data", _find_base_content(data, listed["external"][location], stored)))
            for file in files:
                other = taken.setdefault(file.path.casefold(), file)
                if other is file:
                    found.append(file)
                elif (other.path, other.content.identity) != (file.path, file.content.identity):
                    message = f"with 'include_source', two different files would be written to '{file.path}'"
                    hint = "Use ${model} in the folder of 'include_source', and store no other files in this folder."
                    raise BuildError(Problem("EPB422", message, StepId(emission.id), hint))
    return found


def encrypt_files(emission: Emission, parts: Iterable[PlannedPart], files: Sequence[OutputFile]) -> tuple[OutputFile, ...]:
    """Return the files of an output, in which files with context data are encrypted if the recipe requests it.

    These files are the context binaries, and the models that embed their contexts.
    """
    encryption = emission.encryption
    if encryption is None:
        return tuple(files)
    embedding = {planned.path(file) for planned in parts for file in _find_embedding_models(planned)}
    return tuple(
        replace(file, content=EncryptedFile(file.plain, encryption))
        if file.role == "context-binary" or file.path in embedding
        else file
        for file in files
    )


def _find_embedding_models(planned: PlannedPart) -> Iterator[str]:
    merging, names = planned.part.merging, planned.part.models
    for made in planned.made:
        for model in made.compiled.models:
            if any(node.embed_mode and node.main_context for node in model.nodes):
                yield names[model.member if merging is None else merging.name]


def describe_encryption(encryption: Encryption) -> dict[str, Any]:
    """Return the encryption of an output for its manifest and its key document. Neither has a key or its place."""
    return {"format": ENCRYPTION_FORMAT, **({"key_id": encryption.key_id} if encryption.key_id is not None else {})}


def describe_part(part: Part, digests: Mapping[Path, str]) -> dict[str, Any]:
    """Return the settings that determine a part's files, in the recipe's terms. `digests` has the SHA-256 of the user's files."""
    genai = part.genai
    return {
        "folder": part.folder,
        "models": dict(part.models),
        "context binaries": {member: dict(names) for member, names in part.binaries.items()},
        "options": {ep.entry.ep: ep.lasting_options for ep in part.target.eps},
        "session_options": dict(part.target.session_options),
        **({"run_options": dict(part.target.run_options)} if part.target.run_options else {}),
        "environment": conceal_values(part.target.environment),
        "unchecked": list(part.target.unchecked),
        **({"not reproducible": part.known_to_differ} if part.known_to_differ else {}),
        **({"include_source": dict(part.base)} if part.base else {}),
        **({"components": dict(part.components)} if part.components else {}),
        **({"merge": describe_merging(part.merging)} if part.merging is not None else {}),
        **({"genai": _describe_genai(genai, digests)} if genai is not None else {}),
        **({"adapters": {name: digests[path] for name, path in part.adapters.items()}} if part.adapters else {}),
    }


def arrange(
    results: Iterable[CompileResult],
    names: Mapping[str, str],
    binaries: Mapping[str, Mapping[str, str]],
    reserved: str,
    step: str,
) -> tuple[OutputFile, ...]:
    """Assign a path to each file. `names` has the paths of models by member, `binaries` the paths of context binaries by member and EP.

    No file gets the path `reserved`. External data keeps its location, because the model refers to it. Raises BuildError if one EP
    wrote several context binaries of a model, as the recipe has only one name, or if two files would have one path.
    """
    found: dict[str, OutputFile] = {reserved.casefold(): OutputFile(reserved, "manifest", Blob("", 0))}
    for result in results:
        stored = result.artifacts
        for model in result.models:
            path = names[model.member]
            folder = posixpath.dirname(path)
            _check_single_binaries(model, step)
            references = {}
            for binary, ep in model.binaries.items():
                target = binaries[model.member][ep]
                references[binary] = _get_relative_path(folder, target)
                _add_file(found, OutputFile(target, "context-binary", stored[binary]), step)
            for data in model.data:
                _add_file(found, OutputFile(posixpath.join(folder, data), "external-data", stored[data]), step)
            changed = {old: new for old, new in references.items() if old != new}
            own = stored[model.file]
            _add_file(found, OutputFile(path, "model", RelinkedModel(own, changed) if changed else own), step)
    del found[reserved.casefold()]
    return tuple(sorted(found.values(), key=lambda file: file.path.split("/")))


def _get_relative_path(folder: str, target: str) -> str:
    above, _, name = target.rpartition("/")
    return name if above == folder else posixpath.relpath(target, folder or ".")  # slow, and called for every binary


def _check_single_binaries(model: ModelResult, step: str) -> None:
    if len(set(model.binaries.values())) < len(model.binaries):
        names = ", ".join(model.binaries)
        message = f"the model '{model.member}' has several context binaries ({names}), but the recipe has only one name for them"
        raise BuildError(Problem("EPB421", message, StepId(step)))


def _add_file(found: dict[str, OutputFile], file: OutputFile, step: str) -> None:
    # On case-insensitive file systems, both names refer to one file.
    other = found.setdefault(file.path.casefold(), file)
    if (other.path, _get_stored_identity(other)) != (file.path, _get_stored_identity(file)):
        raise BuildError(Problem("EPB422", f"two different artifacts would be written to '{file.path}'", StepId(step)))


def _get_stored_identity(file: OutputFile) -> str:
    """Return the identity of the content in the store, before references are rewritten."""
    content = file.content
    return content.stored.digest if isinstance(content, RelinkedModel) else content.identity


def _find_base_content(file: Path, digest: str, stored: Mapping[str, Blob]) -> ContentRef:
    return stored.get(digest) or UserFile(file, digest)


def _describe_genai(genai: Genai, digests: Mapping[Path, str]) -> dict[str, Any]:
    files = {name: digests[path] for name, path in genai.files.items()}
    return {"config": digests[genai.config], "roles": dict(genai.roles), "files": files}

"""Tree of an output's files, planned before any of them is written.

Each file has a reference to its content, and the output's key is the digest of the tree. The package `publish` writes trees to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild import __version__
from epbuild.archive.artifact import FileEntry
from epbuild.core.canonical import JsonFile
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob
from epbuild.core.errors import BuildError, Problem, StepId
from epbuild.output.bom import BomModel, build_bill, list_base_models, list_compiled_models
from epbuild.output.files import MergedHeader, OutputDocument, OutputFile
from epbuild.output.materials import OutputInputs, get_source_name, list_recipe_files, name_source
from epbuild.output.package import ModelPackage
from epbuild.output.parts import (
    Arrangement,
    PartManifestFile,
    PlannedPart,
    describe_encryption,
    describe_part,
    encrypt_files,
    get_statement_path,
    plan_base_files,
    plan_part,
)
from epbuild.output.provenance import build_statement
from epbuild.plan.key import compute_action_key
from epbuild.plan.made import Made
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.outputs import BOM, PROVENANCE, find_name_problems, list_parents
from epbuild.plan.steps import Emission, SessionGroup
from epbuild.plan.verification import Verification
from epbuild.recipe.image_reference import DEFAULT_TAG
from epbuild.recipe.model import Archive, Recipe
from epbuild.recipe.model import Layout as LayoutName
from epbuild.recipe.outputs import ARCHIVE_FORMS

FORMAT = 5
"""Version of the emitted bytes. Incremented if a change of relinking, merging, packing or JSON formatting makes equal identities lead to
different bytes.

The content of JSON files is part of their identity. So an update of epbuild emits only outputs that differ."""

_OTHER_NAME = "Choose other names in the recipe, or rename the model's external data."


class Layout(Protocol):
    """Arrangement of the parts of an output. The properties that planning needs are in `recipe/outputs.py`."""

    described_as: str | None
    """Key under which the key document has the output's title and description; None if the files contain neither."""

    def arrange(self, emission: Emission, parts: Sequence[PlannedPart], recipe: str, digests: Mapping[Path, str]) -> Arrangement:
        """Arrange the parts. `digests` has the SHA-256 of the user's files. Raises BuildError if the parts do not fit together."""

    def describe(self, emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        """Return the settings that determine the files, in the recipe's terms."""

    def find_omissions(self, emission: Emission) -> Iterator[str]:
        """Yield a sentence for each setting of the recipe that is missing from the output."""


class Directory:
    """Layout of a single part: its files in a folder, with a manifest."""

    described_as: str | None = None

    def arrange(self, emission: Emission, parts: Sequence[PlannedPart], recipe: str, digests: Mapping[Path, str]) -> Arrangement:
        (planned,) = parts
        base = plan_base_files(emission, planned, "", planned.files)
        return Arrangement(
            files=(*planned.files, *base),
            manifest=PartManifestFile(planned, recipe, get_statement_path(emission), emission.encryption),
            base_models=tuple(list_base_models(planned.models, planned.part.base, planned.part.folder)),
        )

    def describe(self, emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        return describe_part(emission.parts[0], digests)

    def find_omissions(self, emission: Emission) -> Iterator[str]:
        return iter(())


LAYOUTS: Mapping[LayoutName, Layout] = MappingProxyType({"directory": Directory(), "ort-model-package": ModelPackage()})


class OutputTree(Struct, frozen=True):
    """Output before it is written: files with references to their contents, documents that list the files, and the output's key."""

    emission: Emission
    files: tuple[OutputFile, ...]
    documents: tuple[OutputDocument, ...]
    """Documents, each after the documents that it lists."""
    inputs: OutputInputs
    key_document: Mapping[str, Any]
    """Identity of every file, and the settings that determine the files, in the recipe's terms."""
    key: str
    """Digest of the key document."""
    omissions: tuple[str, ...]
    """A sentence for each setting of the recipe that is missing from the output."""


def plan_output(emission: Emission, made: Sequence[Made], recipe: Recipe, digests: Mapping[Path, str]) -> OutputTree:
    """Plan an output from the results `made`. `digests` has the SHA-256 of the user's files.

    Raises BuildError if the output is not possible, and EnvironmentFailure if the Python package for its compression is missing.
    """
    groups = [item for item in made if isinstance(item.action, SessionGroup)]
    checks = [item for item in made if isinstance(item.action, Verification | ModelMeasurement)]
    by_id = {item.group.id: item for item in groups}
    parts = [
        plan_part(emission, part, [by_id[ident] for ident in part.session_groups], checks, digests) for part in emission.parts
    ]
    layout, inputs = LAYOUTS[emission.layout], OutputInputs(emission, tuple(groups), recipe, digests)
    arrangement = layout.arrange(emission, parts, recipe.name, digests)
    files = encrypt_files(emission, parts, arrangement.files)
    documents = [*arrangement.part_manifests]
    if emission.sbom:
        documents.append(OutputDocument(BOM, "bom", BillFile(inputs, tuple(parts), arrangement.base_models, arrangement.shared)))
    documents.append(OutputDocument(MANIFEST, "manifest", arrangement.manifest))
    _check_paths(emission, [*(file.path for file in files), *(item.path for item in documents)])
    document = {"format": FORMAT, **_describe_reasons(inputs), **_identify_files(inputs, files, documents)}
    return OutputTree(
        emission=emission,
        files=files,
        documents=tuple(documents),
        inputs=inputs,
        key_document=document,
        key=compute_action_key(document),
        omissions=tuple(layout.find_omissions(emission)),
    )


class BillFile(Struct, frozen=True):
    """Bill of materials of an output."""

    inputs: OutputInputs
    parts: tuple[PlannedPart, ...]
    base_models: tuple[BomModel, ...]
    shared: Mapping[str, str]
    """Paths of compiled models' files in shared assets, by the paths that the files would have in a part."""

    def render(self, files: Sequence[FileEntry], merged: Mapping[str, MergedHeader]) -> JsonFile:
        compiled = (
            replace(model, refers=tuple(self.shared.get(path, path) for path in model.refers))
            for item in self.parts
            for model in list_compiled_models(item.complete_models(merged), item.made, item.data, item.part.folder)
        )
        emission = self.inputs.emission
        name = f"{emission.title}/{emission.id.removeprefix('emit:')}"
        return build_bill(self.inputs.gather_materials(), [*self.base_models, *compiled], files, name=name)


def render_statement(inputs: OutputInputs, files: Sequence[FileEntry], key: str) -> JsonFile:
    """Return the provenance statement about `files` of the output whose key is `key`."""
    emission = inputs.emission
    registry = str(emission.registry) if emission.registry is not None else None
    settings = {"layout": emission.layout, "archive": emission.archive_format, "registry": registry}
    return build_statement(inputs.gather_materials(), files, invocation=key, output=settings)


def get_image_tag(emission: Emission) -> str:
    """Return the tag of an image in its OCI layout."""
    return emission.registry.tag if emission.registry is not None else DEFAULT_TAG


def build_image_annotations(emission: Emission) -> dict[str, str]:
    """Return the annotations of an image, named as in https://github.com/opencontainers/image-spec/blob/main/annotations.md."""
    described = {"org.opencontainers.image.description": emission.description} if emission.description else {}
    return {"org.opencontainers.image.title": emission.title, **described}


def _check_paths(emission: Emission, paths: Sequence[str]) -> None:
    """Raise BuildError unless every platform can store the files of an output. Some platforms ignore case."""
    step, statement = StepId(emission.id), get_statement_path(emission)
    problems = list(find_name_problems(paths, step, "Choose another name: outputs must work on every platform."))
    taken: dict[str, str] = {}
    for path in paths if statement is None else (statement, *paths):
        if path.casefold() in taken:
            problems.append(Problem("EPB422", f"two different files would be written to '{path}'", step, _OTHER_NAME))
        taken[path.casefold()] = path
    for path in paths:
        folder = next((taken[parent] for parent in list_parents(path.casefold(), "/") if parent in taken), None)
        if folder is not None:
            message = f"'{folder}' would be both a file and the folder of '{path}'"
            problems.append(Problem("EPB422", message, step, _OTHER_NAME))
    if problems:
        raise BuildError(*problems)


def _identify_files(inputs: OutputInputs, files: Sequence[OutputFile], documents: Sequence[OutputDocument]) -> dict[str, Any]:
    """Return the parts of the key document that identify every file of the output."""
    emission = inputs.emission
    entries = [file.entry for file in files]
    for item in documents:
        entries.append(FileEntry(item.path, item.role, 0, item.document.render(entries, {}).identity))
    # A statement contains the key of its output. Everything else in the statement is already part of that key.
    if emission.provenance and not emission.is_file:
        entries.append(FileEntry(PROVENANCE, "provenance", 0, render_statement(inputs, entries, key="").identity))
    identities = {entry.path: entry.digest for entry in entries}
    if emission.statement is not None:
        archive = FileEntry(emission.path.name, "asset", 0, compute_action_key(identities))
        # The statement may have the same name as a file in the archive.
        beside = render_statement(inputs, [archive, *entries], key="")
        return {"files": {**identities, f"../{emission.statement.name}": beside.identity}}
    return {
        "files": identities,
        **({"image files": _identify_image(emission, entries)} if emission.archive_format == "oci" else {}),
    }


def _identify_image(emission: Emission, entries: Sequence[FileEntry]) -> dict[str, str]:
    """Return the identities of the documents of an image. The image's layers are identified by the identities of the files."""
    from epbuild.archive.oci import Layer, describe_image
    from epbuild.archive.zstd import SUFFIX, is_compressed

    layers = [Layer(entry) for entry in entries]
    if emission.compression_level is not None:  # the key also has the compression's level and library
        layers = [
            Layer(entry._replace(path=f"{entry.path}{SUFFIX}", size=0), Blob(entry.digest, entry.size))
            if is_compressed(entry.role)
            else Layer(entry)
            for entry in entries
        ]
    _, manifest, index, layout = describe_image(layers, build_image_annotations(emission), tag=get_image_tag(emission))
    return {"manifest": manifest.sha256, "index": index.sha256, "layout": layout.sha256}


def _describe_reasons(inputs: OutputInputs) -> dict[str, Any]:
    """Return the settings that determine the files of the output, in the recipe's terms."""
    emission, made, recipe, digests = inputs.emission, inputs.made, inputs.recipe, inputs.digests
    layout = LAYOUTS[emission.layout]
    described_as = layout.described_as or ("image" if emission.archive_format == "oci" else None)
    documented = emission.provenance or emission.sbom
    return {
        "layout": emission.layout,
        "recipe": recipe.name,
        **layout.describe(emission, digests),
        "made": {item.group.id: {"key": item.key, "artifacts": item.result.digests} for item in made},
        **({"archive": _describe_archive(emission.archive, emission)} if emission.archive is not None else {}),
        **({described_as: {"name": emission.title, "description": emission.description}} if described_as else {}),
        # A statement names the files of the recipe by their digests.
        **(
            {"provenance": {file.name: file.sha256 for file in list_recipe_files(recipe, digests)}} if emission.provenance else {}
        ),
        **({"sbom": True} if emission.sbom else {}),
        **({"encrypt": describe_encryption(emission.encryption)} if emission.encryption is not None else {}),
        # Provenance and bill of materials both describe how the output was built.
        **({"epbuild": __version__, "named": {item.group.id: _describe_names(item) for item in made}} if documented else {}),
        # Manifests list models in this order.
        "order": {
            part.group: ", ".join(
                member.name for item in made if item.group.id in part.session_groups for member in item.group.members
            )
            for part in emission.parts
        },
    }


def _describe_names(item: Made) -> dict[str, Any]:
    """Return the recipe's names for items that keys identify only by content. Provenance and bills of materials contain these names."""
    group = item.group
    folders = {member.name: get_source_name(folder) for member in group.members if (folder := member.data_folder) is not None}
    renamed = {member.name: member.model.name for member in group.members if member.name != member.model.name}
    return {
        "toolchain": group.target.toolchain.name,
        "models": {member.name: name_source(member.model) for member in group.members},
        **({"data folders": folders} if folders else {}),
        **({"renamed": renamed} if renamed else {}),
    }


def _describe_archive(archive: Archive, emission: Emission) -> dict[str, Any]:
    compressed: dict[str, Any] = {}
    if archive.level is not None:
        from epbuild.archive.formats import find_compressor

        method = ARCHIVE_FORMS[archive.format].method
        compressed = {"level": archive.level, "compressor": find_compressor(method, StepId(emission.id))}
    return {
        "format": archive.format,
        # The statement about an archive contains the archive's name.
        **({"name": emission.path.name} if emission.is_file and emission.provenance else {}),
        **({"registry": str(emission.registry)} if emission.registry is not None else {}),
        **compressed,
    }

"""Makes one output: from results in the store to a folder, a package, an archive or an image, put in its place whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild import __version__
from epbuild.archive.artifact import Artifact
from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.core.directory import mend, prepare
from epbuild.core.errors import StepId
from epbuild.output.contents import Bench, LaidOut, Workbench, base_contents, in_order, lay_out, part_manifest
from epbuild.output.existing import Written
from epbuild.output.identities import Identities
from epbuild.output.jsonfile import JsonFile
from epbuild.output.merging import settings_of
from epbuild.plan.key import action_key
from epbuild.plan.made import Made
from epbuild.plan.outputs import BOM, MANIFEST, PROVENANCE
from epbuild.plan.steps import Emission, Part
from epbuild.publish.publishing import Destination, Files, Publisher, Push
from epbuild.recipe.model import Recipe
from epbuild.verify.live.judging import numbers_of

if TYPE_CHECKING:
    from epbuild.output.emitted import EmittedModel

FORMAT = 5
"""Raised when other bytes are written for equal identities: when models are relinked or merged otherwise, when archives are packed
otherwise, or when JSON gets another look. What JSON files say counts by itself, so that a release publishes again only what differs."""


@dataclass(frozen=True)
class Inputs:
    """What goes into outputs beside the results of session groups: the recipe, and the digests of the user's files that count."""

    recipe: Recipe
    files: Mapping[Path, str]

    @property
    def of_the_recipe(self) -> dict[str, str]:
        """The digests of the files that the recipe was read from, by their names as seen from its folder."""
        return {Path(os.path.relpath(path, self.recipe.directory)).as_posix(): self.files[path] for path in self.recipe.files}


@dataclass(frozen=True)
class Output:
    """One output as it has to be: what is laid out and how, what its session groups came to, and what it is made of beside that."""

    emission: Emission
    made: Sequence[Made]
    """Its session groups."""
    inputs: Inputs
    checked: Sequence[Made] = ()
    """The checks of their numbers."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """What the output's key is made of: the identity of every file that will be in it, and why it is that, in the recipe's words.

        The identities are told by the very code that publishes, so that nothing can be published that is not in the key. Raises BuildError
        when the output cannot be as it is asked for, EnvironmentFailure when what compresses it is missing.
        """
        identities = Identities(self.emission)
        # A statement tells the key of the emission that it is about; all else in it counts.
        _publish(self, identities, identities, "", _ignored)
        return {
            "format": FORMAT,
            **_facts(self.emission, self.made, self.inputs),
            "files": identities.files,
            **({"image files": identities.image} if identities.image else {}),
        }

    @cached_property
    def key(self) -> str:
        """The digest of the document. Raises what `document` does."""
        return action_key(self.document)

    def publish(self, store: BlobStore, written: Written, digests: Digests, say: Callable[[str], None], push: Push) -> Files:
        """Put the output in its place; returns each file's digest and size by its path below the output's root.

        `written` knows what epbuild wrote here before, and is told what of that is kept; `say` is told how models were merged, and what was
        left out; `push` brings an image to a registry. Raises BuildError when something of the user's is in the way, or the output cannot
        be as it is asked for, EnvironmentFailure when the place cannot be written, MissingBlob or DamagedBlob when an artifact has to be
        made again, and what `push` raises.
        """
        emission, key = self.emission, self.key
        with prepare(emission.path, written, emission.id) as draft:
            bench = Workbench(draft / "made", store)
            bench.folder.mkdir()
            return _publish(self, bench, Publisher(emission, bench, draft, store, digests, written, push), key, say)


def _publish(output: Output, bench: Bench, destination: Destination, key: str, say: Callable[[str], None]) -> Files:
    emission, made, inputs = output.emission, output.made, output.inputs
    by_id = {item.group.id: item for item in made}
    laid = [lay_out(emission, part, [by_id[i] for i in part.session_groups], bench, say) for part in emission.parts]
    checked = {item.action.id: item for item in output.checked}
    laid = [_with_numbers(item, checked[item.part.verification]) if item.part.verification else item for item in laid]
    artifacts = in_order(_contents(emission, laid, bench, inputs, say))

    def stated(subjects: Sequence[Artifact]) -> JsonFile:
        from epbuild.output.evidence import statement_of

        return statement_of(emission, key, subjects, made, inputs.recipe, inputs.files)

    if emission.pack in ("zip", "tar.zst"):
        beside = emission.statement
        return destination.as_archive(
            emission.pack, artifacts, lambda whole: {beside.name: stated([whole, *artifacts])} if beside else {}
        )
    if emission.provenance:
        artifacts = in_order([*artifacts, bench.written(PROVENANCE, "provenance", stated(artifacts))])
    if emission.pack == "oci":
        return destination.as_image(artifacts, _annotations(emission))
    return destination.as_folder(artifacts)


def _with_numbers(laid: LaidOut, checked: Made) -> LaidOut:
    """A part with the figures of its models, and of those that a model of it was merged from."""
    models = [
        replace(
            model,
            numbers={} if model.merged else numbers_of(checked, model.name),
            merged=[{**member, **numbers_of(checked, member["name"])} for member in model.merged],
        )
        for model in laid.models
    ]
    return replace(laid, models=tuple(models))


def _ignored(text: str) -> None:
    """What happens while an output is made, nobody asks for before it is."""


def _facts(emission: Emission, made: Sequence[Made], inputs: Inputs) -> dict[str, Any]:
    """Why the files of an output are what they are, in the words of the recipe."""
    files = inputs.files
    describes_itself = "package" if _is_package(emission) else "image" if emission.pack == "oci" else None
    return {
        "layout": emission.layout,
        "recipe": inputs.recipe.name,
        **(
            {"parts": {f"{part.group}/{part.target.name}": _part_document(part, files) for part in emission.parts}}
            if _is_package(emission)
            else _part_document(emission.parts[0], files)
        ),
        "made": {item.group.id: {"key": item.key, "artifacts": _digests(item.result)} for item in made},
        **({"pack": _pack_document(emission)} if emission.pack is not None else {}),
        **({describes_itself: {"name": emission.title, "description": emission.description}} if describes_itself else {}),
        # A statement names the files of the recipe by their digests.
        **({"provenance": inputs.of_the_recipe} if emission.provenance else {}),
        **({"bom": True} if emission.bom else {}),
        # Both name what made the output.
        **({"epbuild": __version__} if emission.provenance or emission.bom else {}),
        **({"named": {item.group.id: _named(item) for item in made}} if emission.provenance or emission.bom else {}),
        "order": {part.group: ", ".join(_order(part, made)) for part in emission.parts},
    }


def _order(part: Part, made: Sequence[Made]) -> list[str]:
    """The models of a part in the order in which manifests list them."""
    return [member.name for item in made if item.group.id in part.session_groups for member in item.group.members]


def _named(item: Made) -> dict[str, Any]:
    """What the recipe calls things that keys know by their content alone, as provenance and bills of materials name them."""
    from epbuild.output.materials import source_name

    group = item.group
    folders = {member.name: source_name(folder) for member in group.members if (folder := member.data_folder) is not None}
    renamed = {member.name: member.model.name for member in group.members if member.name != member.model.name}
    return {
        "toolchain": group.target.toolchain.name,
        "models": {member.name: source_name(member.model.path) for member in group.members},
        **({"data folders": folders} if folders else {}),
        **({"renamed": renamed} if renamed else {}),
    }


def _part_document(part: Part, files: Mapping[Path, str]) -> dict[str, Any]:
    genai = part.genai
    return {
        "folder": part.folder,
        "models": dict(part.models),
        "context binaries": {member: dict(names) for member, names in part.binaries.items()},
        "options": {ep.entry.ep: ep.lasting_options for ep in part.target.eps},
        "session_options": dict(part.target.session_options),
        "environment": dict(part.target.environment),
        "unchecked": list(part.target.unchecked),
        **({"not reproducible": part.known_to_differ} if part.known_to_differ else {}),
        **({"base": dict(part.base)} if part.base else {}),
        **({"components": dict(part.components)} if part.components else {}),
        **({"merge": settings_of(part.merging)} if part.merging is not None else {}),
        **(
            {
                "genai": {
                    "config": files[genai.config],
                    "roles": dict(genai.roles),
                    "files": {name: files[path] for name, path in genai.files.items()},
                }
            }
            if genai is not None
            else {}
        ),
    }


def _pack_document(emission: Emission) -> dict[str, Any]:
    compression, compressed = emission.compression, dict[str, Any]()
    if compression is not None:
        from epbuild.archive.formats import compressor

        compressed = {"compression": compression.level, "compressor": compressor(compression.method, StepId(emission.id))}
    return {
        "form": emission.pack,
        # What is said about an archive names it.
        **({"name": emission.path.name} if emission.is_file and emission.provenance else {}),
        **({"push": str(emission.push)} if emission.push is not None else {}),
        **compressed,
    }


def _contents(
    emission: Emission, laid: Sequence[LaidOut], bench: Bench, inputs: Inputs, say: Callable[[str], None]
) -> list[Artifact]:
    """The files of an output, less its provenance, which tells of them all."""
    statement = PROVENANCE if emission.provenance and not emission.is_file else None
    parts = [[*item.artifacts, *_pipeline(emission, item, bench, inputs)] for item in laid]
    if _is_package(emission):
        from epbuild.output.packages import package_of

        package = package_of(emission, laid, parts, bench, inputs.recipe.name, inputs.files)
        for sentence in package.left_out:
            say(sentence)
        artifacts = [*package.artifacts, *_bill(emission, laid, package.artifacts, bench, inputs, package.base_models)]
        manifest = package.manifest(artifacts, inputs.recipe.name, statement)
    else:
        (item,), (mine,) = laid, parts
        artifacts = [*mine, *base_contents(emission, item, "", bench, mine)]
        artifacts += _bill(emission, laid, artifacts, bench, inputs, item.base_models)
        manifest = part_manifest(item, artifacts, inputs.recipe.name, statement)
    return [*artifacts, bench.written(MANIFEST, "manifest", manifest)]


def _bill(
    emission: Emission,
    laid: Sequence[LaidOut],
    artifacts: Sequence[Artifact],
    bench: Bench,
    inputs: Inputs,
    base: Callable[[], Sequence[EmittedModel]],
) -> Iterator[Artifact]:
    if emission.bom:
        from epbuild.output.evidence import bill_of

        yield bench.written(BOM, "bom", bill_of(emission, laid, artifacts, base(), inputs.recipe, inputs.files))


def _pipeline(emission: Emission, laid: LaidOut, bench: Bench, inputs: Inputs) -> Iterator[Artifact]:
    if laid.part.genai is not None:
        from epbuild.output.pipelines import pipeline_contents

        yield from pipeline_contents(emission, laid, laid.part.genai, bench, inputs.files)


def _annotations(emission: Emission) -> dict[str, str]:
    """What an image says of itself, by the names of https://github.com/opencontainers/image-spec/blob/main/annotations.md."""
    described = {"org.opencontainers.image.description": emission.description} if emission.description else {}
    return {"org.opencontainers.image.title": emission.title, **described}


def clear_away(emission: Emission, written: Written) -> None:
    """Remove what killed builds left beside the output of an emission whose lease is held. Raises OSError."""
    mend(emission.path, written)


def _is_package(emission: Emission) -> bool:
    return emission.layout == "ort-model-package"


def _digests(result: Mapping[str, Any]) -> dict[str, str]:
    return {name: blob["digest"] for name, blob in result["artifacts"].items()}

"""An output as a value, whose key is the digest of its files' identities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild import __version__
from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile
from epbuild.core.errors import StepId
from epbuild.output.files import OutputFile, Resolve, named
from epbuild.output.layout import LAYOUTS, Layout
from epbuild.output.pack import PACKS, Destination, Files, Identities
from epbuild.output.parts import ArrangedPart, Inputs, PartContents, in_order
from epbuild.plan.key import action_key
from epbuild.plan.made import Made
from epbuild.plan.outputs import BOM, MANIFEST, PROVENANCE
from epbuild.plan.steps import Emission, Part
from epbuild.verify.live.judging import numbers_of

if TYPE_CHECKING:
    from epbuild.output.materials import Materials

FORMAT = 5
"""Raised when other bytes are written for equal identities: when models are relinked or merged otherwise, when archives are packed
otherwise, or when JSON gets another look. What is in JSON files counts by itself, so that a release publishes again only what differs."""


class Output(Struct, frozen=True, dict=True):
    """One output as it has to be: what is published and how, what its session groups came to, and what it is made of beside that."""

    emission: Emission
    made: Sequence[Made]
    """Its session groups."""
    inputs: Inputs
    checked: Sequence[Made] = ()
    """The checks of their numbers."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """What the output's key is made of: the identity of every file that will be in it, and why it is that, in the recipe's words.

        The very code that publishes names the files, so that nothing can be published that is not in the key. Raises BuildError when the
        output cannot be as it is asked for, EnvironmentFailure when what compresses it is missing.
        """
        identities = Identities(self.emission)
        # A statement has the key of the emission that it is about; all else in it counts.
        self.publish_to(identities, named, key="")
        return {
            "format": FORMAT,
            **self._reasons(),
            "files": identities.files,
            **({"image files": identities.image} if identities.image else {}),
        }

    @cached_property
    def key(self) -> str:
        """The digest of the document. Raises what `document` does."""
        return action_key(self.document)

    def notes(self) -> Iterator[str]:
        """A sentence for all that the recipe has and the output does not hold."""
        return LAYOUTS[self.emission.layout].notes(self.emission)

    def publish_to(self, destination: Destination, resolve: Resolve, key: str) -> Files:
        """Publish the artifacts, as `resolve` makes them, to a destination; `key` is the output's own.

        Raises BuildError when the output cannot be as it is asked for, and what `resolve` and the destination raise.
        """
        emission = self.emission

        def statement_of(subjects: Sequence[Artifact]) -> JsonFile:
            from epbuild.output.provenance import statement

            push = str(emission.push) if emission.push is not None else None
            output = {"layout": emission.layout, "pack": emission.pack, "push": push}
            return statement(self._materials(), subjects, invocation=key, output=output)

        return PACKS[emission.pack].publish(emission, self._artifacts(resolve), statement_of, resolve, destination)

    def _artifacts(self, resolve: Resolve) -> tuple[Artifact, ...]:
        """The files of the output, less its provenance, which is about them all."""
        emission = self.emission
        layout = LAYOUTS[emission.layout].of(emission, [self._part(part, resolve) for part in self._parts], self.inputs, resolve)
        artifacts = [*layout.artifacts, *self._bill(layout, resolve)]
        manifest = layout.manifest(artifacts, PROVENANCE if emission.provenance and not emission.is_file else None)
        return in_order([*artifacts, resolve(OutputFile(MANIFEST, "manifest", manifest))])

    @cached_property
    def _parts(self) -> list[ArrangedPart]:
        made = {item.group.id: item for item in self.made}
        return [
            ArrangedPart.of(self.emission, part, [made[ident] for ident in part.session_groups]) for part in self.emission.parts
        ]

    def _part(self, arranged: ArrangedPart, resolve: Resolve) -> PartContents:
        part, contents = arranged.part, arranged.contents(resolve)
        if part.genai is not None:
            from epbuild.output.genai_files import pipeline_artifacts

            pipeline = pipeline_artifacts(self.emission, contents, self.inputs.files, resolve)
            contents = replace(contents, artifacts=(*contents.artifacts, *pipeline))
        if part.verification is not None:
            checked = next(item for item in self.checked if item.action.id == part.verification)
            contents = _with_numbers(contents, checked)
        return contents

    def _bill(self, layout: Layout, resolve: Resolve) -> Iterator[Artifact]:
        if self.emission.bom:
            from epbuild.output.bom import bill, compiled_models

            compiled = (compiled_models(item.models, item.made, item.data, item.part.folder) for item in layout.parts)
            models = chain(layout.base_models(), *compiled)
            name = f"{self.emission.title}/{self.emission.id.removeprefix('emit:')}"
            found = bill(self._materials(), models, layout.artifacts, name=name)
            yield resolve(OutputFile(BOM, "bom", found))

    def _materials(self) -> Materials:
        from epbuild.output.materials import materials_of

        return materials_of(self.emission, self.made, self.inputs.recipe, self.inputs.files)

    def _reasons(self) -> dict[str, Any]:
        """Why the files of the output are what they are, in the words of the recipe."""
        emission, made = self.emission, self.made
        layout, pack = LAYOUTS[emission.layout], PACKS[emission.pack]
        described_as = layout.described_as or pack.described_as
        documented = emission.provenance or emission.bom
        return {
            "layout": emission.layout,
            "recipe": self.inputs.recipe.name,
            **layout.document(emission, self.inputs.files),
            "made": {item.group.id: {"key": item.key, "artifacts": item.result.digests} for item in made},
            **({"pack": _pack_document(emission)} if emission.pack is not None else {}),
            **({described_as: {"name": emission.title, "description": emission.description}} if described_as else {}),
            # A statement names the files of the recipe by their digests.
            **({"provenance": self.inputs.of_the_recipe} if emission.provenance else {}),
            **({"bom": True} if emission.bom else {}),
            # Both name what made the output.
            **({"epbuild": __version__, "named": {item.group.id: _names(item) for item in made}} if documented else {}),
            "order": {part.group: ", ".join(_order(part, made)) for part in emission.parts},
        }


def _with_numbers(contents: PartContents, checked: Made) -> PartContents:
    """A part with the figures of its models, and of those that a model of it was merged from."""
    models = [
        replace(
            model,
            numbers={} if model.merged else numbers_of(checked, model.name),
            merged=[{**member, **numbers_of(checked, member["name"])} for member in model.merged],
        )
        for model in contents.models
    ]
    return replace(contents, models=tuple(models))


def _order(part: Part, made: Sequence[Made]) -> list[str]:
    """The models of a part in the order in which manifests list them."""
    return [member.name for item in made if item.group.id in part.session_groups for member in item.group.members]


def _names(item: Made) -> dict[str, Any]:
    """The recipe's names for what keys know by content alone, as provenance and bills of materials have them."""
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


def _pack_document(emission: Emission) -> dict[str, Any]:
    compression, compressed = emission.compression, dict[str, Any]()
    if compression is not None:
        from epbuild.archive.formats import compressor

        compressed = {"compression": compression.level, "compressor": compressor(compression.method, StepId(emission.id))}
    return {
        "form": emission.pack,
        # The statement about an archive names it.
        **({"name": emission.path.name} if emission.is_file and emission.provenance else {}),
        **({"push": str(emission.push)} if emission.push is not None else {}),
        **compressed,
    }

"""The layout `directory`: the files of one part in a folder, with a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile
from epbuild.output.files import Resolve
from epbuild.output.parts import Inputs, PartContents, base_artifacts, part_document, part_manifest
from epbuild.plan.steps import Emission

if TYPE_CHECKING:
    from epbuild.output.bom import BomModel


class Directory:
    """An output that is one part."""

    described_as: str | None = None

    def __init__(self, part: PartContents, recipe: str, artifacts: Sequence[Artifact]) -> None:
        self.parts: tuple[PartContents, ...] = (part,)
        self.artifacts = tuple(artifacts)
        self._recipe = recipe

    @classmethod
    def of(cls, emission: Emission, parts: Sequence[PartContents], inputs: Inputs, resolve: Resolve) -> Self:
        (part,) = parts
        own = part.artifacts
        return cls(part, inputs.recipe.name, [*own, *base_artifacts(emission, part, "", resolve, own)])

    def base_models(self) -> list[BomModel]:
        from epbuild.output.bom import base_models

        (contents,) = self.parts
        return base_models(contents.models, contents.part.base, contents.part.folder)

    def manifest(self, artifacts: Sequence[Artifact], provenance: str | None) -> JsonFile:
        return part_manifest(self.parts[0], artifacts, self._recipe, provenance)

    @staticmethod
    def document(emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        return part_document(emission.parts[0], digests)

    @staticmethod
    def notes(emission: Emission) -> Iterator[str]:
        return iter(())

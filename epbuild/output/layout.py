"""Layouts by their names in recipes: how the files of an output are arranged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self

from epbuild.archive.artifact import Artifact
from epbuild.core.canonical import JsonFile
from epbuild.output.directory import Directory
from epbuild.output.files import Resolve
from epbuild.output.package import ModelPackage
from epbuild.output.parts import Inputs, PartContents
from epbuild.plan.steps import Emission
from epbuild.recipe.model import Layout as LayoutName

if TYPE_CHECKING:
    from epbuild.output.bom import BomModel


class Layout(Protocol):
    """The parts of one output, arranged; what `plan` has to know of a layout is in `recipe/forms.py`."""

    described_as: str | None
    """What an output is called that has its title and its description in it; None: it has neither."""
    parts: tuple[PartContents, ...]
    artifacts: tuple[Artifact, ...]
    """The files, less the manifest and what is written about them all."""

    @classmethod
    def of(cls, emission: Emission, parts: Sequence[PartContents], inputs: Inputs, resolve: Resolve) -> Self:
        """Arrange the parts of an output.

        Raises BuildError when it cannot be arranged as it is asked for, and what `resolve` raises.
        """

    def base_models(self) -> list[BomModel]:
        """The models as they were before compiling, where they are in the output."""

    def manifest(self, artifacts: Sequence[Artifact], provenance: str | None) -> JsonFile:
        """The manifest, which lists `artifacts`; `provenance` is the path of the statement about them all."""

    @staticmethod
    def document(emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        """Why the files are what they are, in the words of the recipe; `digests` are those of the user's files."""

    @staticmethod
    def notes(emission: Emission) -> Iterator[str]:
        """A sentence for all that the recipe has and the output does not hold."""


LAYOUTS: Mapping[LayoutName, type[Layout]] = MappingProxyType({"directory": Directory, "ort-model-package": ModelPackage})

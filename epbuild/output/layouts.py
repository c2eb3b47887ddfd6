"""Layouts by their names in recipes: how the files of an output are arranged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from epbuild.output.bom import list_base_models
from epbuild.output.package import ModelPackage
from epbuild.output.parts import Arrangement, PartManifestFile, PlannedPart, describe_part, plan_base_files, statement_path
from epbuild.plan.steps import Emission
from epbuild.recipe.model import Layout as LayoutName


class Layout(Protocol):
    """Way in which the parts of an output are arranged. The properties that planning needs are in `recipe/forms.py`."""

    described_as: str | None
    """Name in the key document of the output's title and description; None if the files do not have them."""

    def arrange(self, emission: Emission, parts: Sequence[PlannedPart], recipe: str, digests: Mapping[Path, str]) -> Arrangement:
        """Arrange the parts; `digests` has the SHA-256 of the user's files. Raises BuildError if they do not fit together."""

    def describe(self, emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        """Return why the files are what they are, in the recipe's words."""

    def find_omissions(self, emission: Emission) -> Iterator[str]:
        """Yield a sentence for each thing that the recipe has and the output does not hold."""


class Directory:
    """Layout of a single part: its files in a folder, with a manifest."""

    described_as: str | None = None

    def arrange(self, emission: Emission, parts: Sequence[PlannedPart], recipe: str, digests: Mapping[Path, str]) -> Arrangement:
        (planned,) = parts
        base = plan_base_files(emission, planned, "", planned.files)
        return Arrangement(
            files=(*planned.files, *base),
            manifest=PartManifestFile(planned, recipe, statement_path(emission)),
            base_models=tuple(list_base_models(planned.models, planned.part.base, planned.part.folder)),
        )

    def describe(self, emission: Emission, digests: Mapping[Path, str]) -> dict[str, Any]:
        return describe_part(emission.parts[0], digests)

    def find_omissions(self, emission: Emission) -> Iterator[str]:
        return iter(())


LAYOUTS: Mapping[LayoutName, Layout] = MappingProxyType({"directory": Directory(), "ort-model-package": ModelPackage()})

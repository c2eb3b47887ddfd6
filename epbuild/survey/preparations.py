"""Preparations as a survey knows them: key document, files, memory, ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.plan.made import Made, prepared_files
from epbuild.plan.preparing import Preparation, preparation_document
from epbuild.plan.result import PreparationResult
from epbuild.survey.kind import KeyInputs, Kind, StepEnd


class Preparations(Kind[Preparation, PreparationResult]):
    """What is done to a model before it is compiled."""

    doing = "staging"
    doing_again = "preparing again"
    done = "prepared"
    result = PreparationResult

    def unknown(self, action: Preparation) -> Sequence[str]:
        if action.after is None and action.source is None:
            return [f"the model '{action.model.name}' is not fetched yet"]
        return []

    def resolved(self, action: Preparation, needed: Sequence[Made], store: BlobStore) -> Preparation:
        return replace(action, source=prepared_files(needed[0], store)) if needed else action

    def document(self, action: Preparation, inputs: KeyInputs) -> dict[str, Any]:
        return preparation_document(action, inputs.digests, inputs.toolchain)

    def memory(self, action: Preparation, measured: int | None) -> int:
        return action.memory or super().memory(action, measured)

    def ends(self, action: Preparation, result: PreparationResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, "", sum(file.size for file in result.artifacts.values()))

"""Action type that runs a preparation of a model before the compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epbuild.actions.action_type import ActionType, KeyInputs, StepEnd
from epbuild.cache.blobs import BlobStore
from epbuild.plan.made import Made, list_prepared_files
from epbuild.plan.preparing import Preparation, build_preparation_document
from epbuild.plan.result import PreparationResult

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution


class Prepare(ActionType[Preparation, PreparationResult]):
    """Action type that runs a program to convert a model before the compile."""

    doing = "staging"
    doing_again = "preparing again"
    done = "prepared"
    result = PreparationResult

    def unknown_inputs(self, action: Preparation) -> Sequence[str]:
        if action.after is None and action.source is None:
            return [f"the model '{action.model.name}' has not been fetched yet"]
        return []

    def resolve_inputs(self, action: Preparation, needed: Sequence[Made], store: BlobStore) -> Preparation:
        return replace(action, source=list_prepared_files(needed[0], store)) if needed else action

    def key_document(self, action: Preparation, inputs: KeyInputs) -> dict[str, Any]:
        return build_preparation_document(action, inputs.digests, inputs.toolchain)

    def run(self, action: Preparation, document: Mapping[str, Any], execution: Execution) -> PreparationResult:
        from epbuild.compile.preparing import prepare

        return prepare(action, execution)

    def rebuild(self, action: Preparation, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.preparing import rebuild

        return rebuild(action, execution)

    def memory(self, action: Preparation, measured: int | None) -> int:
        return action.memory or super().memory(action, measured)

    def step_ends(self, action: Preparation, result: PreparationResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, "", sum(file.size for file in result.artifacts.values()))

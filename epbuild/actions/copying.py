"""Action type that stores a model of a group without compiling it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epbuild.actions.action_type import ActionType, KeyInputs, StepEnd
from epbuild.actions.compiling import add_prepared_files, check_prepared_models, list_unfetched, measure_models
from epbuild.cache.blobs import BlobStore
from epbuild.plan.made import Made
from epbuild.plan.request import compile_document
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import CopiedModel
from epbuild.toolchain.identity import Identified

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution


class Copy(ActionType[CopiedModel, CompileResult]):
    """Action type that stores a model as it is or as prepared.

    The key document is that of a compile, so that manifests and provenance describe the target of the model in the same way.
    """

    doing = "staging"
    doing_again = "copying again"
    done = "copied"
    result = CompileResult

    def unknown_inputs(self, action: CopiedModel) -> Sequence[str]:
        return list_unfetched(action)

    def resolve_inputs(self, action: CopiedModel, needed: Sequence[Made], store: BlobStore) -> CopiedModel:
        return add_prepared_files(action, needed, store)

    def key_document(self, action: CopiedModel, inputs: KeyInputs) -> dict[str, Any]:
        return compile_document(action, inputs.digests, inputs.toolchain)

    def identity(self, action: CopiedModel, toolchain: Identified) -> dict[str, Any]:
        return toolchain.identity(*action.identity_parts)

    def check(self, action: CopiedModel) -> None:
        check_prepared_models(action)

    def run(self, action: CopiedModel, document: Mapping[str, Any], execution: Execution) -> CompileResult:
        from epbuild.compile.copying import copy_model

        return copy_model(action, execution)

    def rebuild(self, action: CopiedModel, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.copying import stage_copy

        return stage_copy(action, execution)

    def size(self, action: CopiedModel) -> int:
        return measure_models(action)

    def step_ends(self, action: CopiedModel, result: CompileResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, "not compiled", result.size(result.names))

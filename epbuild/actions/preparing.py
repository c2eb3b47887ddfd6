"""Action type that runs a preparation of a model before the compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epbuild.actions.action_type import ActionType, KeyInputs, StepEnd
from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import PlanError
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.made import Made, list_prepared_files
from epbuild.plan.preparing import Preparation, build_preparation_document, estimate_built_in_memory, measure_files
from epbuild.plan.result import PreparationResult
from epbuild.plan.shapes import find_model_size_problems, read_stored_header
from epbuild.plan.source_problems import find_data_name_problems

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution


class Prepare(ActionType[Preparation, PreparationResult]):
    """Action type that runs a program to convert a model before the compile."""

    doing = "staging"
    doing_again = "preparing again"
    done = "prepared"
    result = PreparationResult

    def unknown_inputs(self, action: Preparation) -> Sequence[str]:
        if action.after is None and action.source is None and not action.is_make:
            return [f"the model '{action.model.name}' has not been fetched yet"]
        return []

    def resolve_inputs(self, action: Preparation, needed: Sequence[Made], store: BlobStore) -> Preparation:
        return _add_shapes(replace(action, source=list_prepared_files(needed[0], store))) if needed else action

    def key_document(self, action: Preparation, inputs: KeyInputs) -> dict[str, Any]:
        return build_preparation_document(action, inputs.digests, inputs.toolchain)

    def check(self, action: Preparation) -> None:
        # The planner has checked preparations of source models.
        if action.source is not None and action.after is not None and action.number == 1:
            graph = action.source.graph
            problems = find_model_size_problems(action.model, read_header(graph), graph)
            problems += find_data_name_problems(action.model.name, action.model, action.source.external)
            if problems:
                raise PlanError(*problems)

    def run(self, action: Preparation, document: Mapping[str, Any], execution: Execution) -> PreparationResult:
        from epbuild.compile.preparing import prepare

        return prepare(action, execution)

    def rebuild(self, action: Preparation, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.preparing import rebuild

        return rebuild(action, execution)

    def size(self, action: Preparation) -> int:
        return measure_files(action)

    def memory(self, action: Preparation, measured: int | None) -> int:
        return action.memory or measured or estimate_built_in_memory(action) or super().memory(action, measured)

    def step_ends(self, action: Preparation, result: PreparationResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, "", sum(file.size for file in result.artifacts.values()))


def _add_shapes(action: Preparation) -> Preparation:
    """Return the preparation with the shapes of its inputs added. Return it unchanged if the model that it reads is missing or damaged."""
    if not action.input_shapes or action.source is None:
        return action
    header = read_stored_header(action.source.graph)
    return action if header is None else action.with_shapes(header)

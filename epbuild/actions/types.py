"""Action types whose results the store keeps: all except emissions."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import ValidationError
from msgspec.structs import replace

from epbuild.actions.action_type import ActionType, StepEnd
from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import EnvironmentFailure, PlanError, Problem, StepId
from epbuild.core.records import convert
from epbuild.core.units import format_count
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made, list_prepared_files
from epbuild.plan.measuring import ModelMeasurement, build_measurement_document
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.possible import find_obstacle
from epbuild.plan.preparing import Preparation, build_preparation_document, estimate_built_in_memory, measure_files
from epbuild.plan.request import compile_document
from epbuild.plan.result import ActionResult, CompileResult, MeasurementResult, PreparationResult, VerificationResult
from epbuild.plan.shapes import find_model_size_problems, fit_inputs, read_stored_header
from epbuild.plan.source_problems import find_data_name_problems, find_source_problems
from epbuild.plan.steps import Action, CopiedModel, SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, build_verification_document
from epbuild.verify.expectations import (
    check_size,
    find_unmeasured,
    find_unmet_expectations,
    list_size_limits,
    measure_shared_bytes,
    with_alone,
)
from epbuild.verify.figures import check_figures, format_measurement_note
from epbuild.verify.live.judging import find_number_problems, format_note
from epbuild.verify.live.source import find_other_values

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution

_G = TypeVar("_G", bound=SessionGroup)


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
        return _add_preparation_shapes(replace(action, source=list_prepared_files(needed[0], store))) if needed else action

    def key_document(self, action: Preparation, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
        return build_preparation_document(action, digests, toolchain)

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


def _add_preparation_shapes(action: Preparation) -> Preparation:
    """Return the preparation with the shapes of its inputs added. Return it unchanged if the model that it reads is missing or damaged."""
    if not action.input_shapes or action.source is None:
        return action
    header = read_stored_header(action.source.graph)
    return action if header is None else action.with_shapes(header)


class _StoreModels(ActionType[_G, CompileResult]):
    """Action type that stores the models of a session group."""

    doing = "staging"
    result = CompileResult

    def unknown_inputs(self, action: _G) -> Sequence[str]:
        return [
            f"the model '{member.name}' has not been fetched yet"
            for member in action.members
            if not member.has_files and member.prepared is None
        ]

    def resolve_inputs(self, action: _G, needed: Sequence[Made], store: BlobStore) -> _G:
        if not needed:
            return action
        files = {made.action.id: list_prepared_files(made, store) for made in needed}
        members = (
            _add_member_shapes(member.with_files(files[member.prepared])) if member.prepared in files else member
            for member in action.members
        )
        return replace(action, members=tuple(members))

    def fingerprint(self, action: _G) -> str:
        return action.fingerprint

    def key_document(self, action: _G, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
        return compile_document(action, digests, toolchain)

    def check(self, action: _G) -> None:
        # The planner has checked all models that are not prepared.
        headers = {member.name: read_header(member.graph) for member in action.members if member.prepared is not None}
        problems = find_source_problems(action, headers)
        if problems:
            raise PlanError(*problems)

    def size(self, action: _G) -> int:
        # For models that are not prepared yet, use the size of the user's files.
        beginnings = (path for member in action.members if not member.has_files for path in member.beginning)
        return sum(path.stat().st_size for path in {*action.files, *beginnings})


class Compile(_StoreModels[SessionGroup]):
    """Action type that compiles the models of a session group in one process. The models may share weights."""

    doing_again = "compiling again"
    done = "compiled"

    def check(self, action: SessionGroup) -> None:
        reason = find_obstacle(action.target, sys.platform)
        if reason is not None:
            raise EnvironmentFailure(
                Problem("EPB416", reason, StepId(action.id), "Compile on another machine that supports the target.")
            )
        super().check(action)

    def run(self, action: SessionGroup, document: Mapping[str, Any], execution: Execution) -> CompileResult:
        from epbuild.compile.executor import execute

        return execute(action, document, execution)

    def add_part(self, action: SessionGroup, result: CompileResult, part: str, execution: Execution) -> CompileResult:
        from epbuild.compile.alone import compile_alone

        member = action.member(part)
        doing = f"compiling {part} alone to measure the savings from sharing"
        alone = compile_alone(action, member, execution, action.id, doing)
        return with_alone(result, member, alone.context_bytes)

    def rebuild(self, action: SessionGroup, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.executor import rebuild

        return rebuild(action, document, execution)

    def unmet_expectations(self, action: SessionGroup, result: CompileResult) -> Sequence[Problem]:
        return find_unmet_expectations(action, result)

    def missing_parts(self, action: SessionGroup, result: CompileResult) -> Mapping[str, str]:
        names = [member.name for member in find_unmeasured(action, result)]
        needed = "has not been compiled alone yet, which is needed to measure what sharing saves"
        return {name: f"the model '{name}' {needed}" for name in names}

    def known_differences(self, action: SessionGroup) -> Sequence[KnownDifference]:
        return action.target.known_differences

    def known_to_differ(self, action: SessionGroup) -> str | None:
        return action.target.known_to_differ(allow_nondeterminism=action.allow_nondeterminism)

    def accepts_other_bytes(self, action: SessionGroup) -> bool:
        return action.allow_nondeterminism

    def starts_another_process(self, action: SessionGroup) -> bool:
        return action.min_shared_ratio is not None

    def memory(self, action: SessionGroup, measured: int | None) -> int:
        return action.memory or super().memory(action, measured)

    def step_ends(self, action: SessionGroup, result: CompileResult) -> Iterator[StepEnd]:
        took = result.measured.members
        for step, member in itertools.zip_longest(action.steps, action.members):
            note, size = _describe_end(action, result, member.name if member else None)
            seconds = None if member is None or step == action.id else took.get(member.name, 0.0)
            yield StepEnd(step, seconds, note, size)


class Copy(_StoreModels[CopiedModel]):
    """Action type that stores a model as it is or as prepared.

    The key document is that of a compile, so that manifests and provenance describe the target of the model in the same way.
    """

    doing_again = "copying again"
    done = "copied"

    def run(self, action: CopiedModel, document: Mapping[str, Any], execution: Execution) -> CompileResult:
        from epbuild.compile.copying import copy_model

        return copy_model(action, execution)

    def rebuild(self, action: CopiedModel, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.copying import stage_copy

        return stage_copy(action, execution)

    def unmet_expectations(self, action: CopiedModel, result: CompileResult) -> Sequence[Problem]:
        return list(check_size(action, result))

    def step_ends(self, action: CopiedModel, result: CompileResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, "not compiled", result.size(result.names))


def _add_member_shapes(member: Member) -> Member:
    """Return the member with the shapes of its inputs added. Return it unchanged if the prepared model is missing or damaged."""
    if not member.input_shapes and not member.model.dimensions:
        return member
    header = read_stored_header(member.graph)
    return member if header is None else fit_inputs(member, header)


def _describe_end(group: SessionGroup, result: CompileResult, member: str | None) -> tuple[str, int]:
    """Return the note and the total bytes of a finished compile or share step. A shared binary counts as part of the share step."""
    models = [model for model in result.models if member in (None, model.member)]
    files = {model.file for model in models if member}
    if member is None or not group.share:
        files |= {name for model in models for name in (*model.binaries, *model.data)}
    size = result.size(files)
    most = min((limit.bytes for limit in list_size_limits(group)), default=None)
    limits = [f"limit {most:,} bytes"] if most is not None and (member is None or not group.share) else []
    if member is None:
        note = format_count(len(models), "model")
        if (found := measure_shared_bytes(group, result)) is not None:
            note += f", sharing saves {found.saved:,} of {found.alone:,} bytes (ratio {found.shown_ratio})"
        if (shared := result.shared_initializers) is not None:
            note += f", weights shared in ONNX: {shared.stored_bytes:,} bytes instead of {shared.total_bytes:,}"
        return ", ".join([note, *limits]), size
    nodes, others = len(models[0].nodes), models[0].fallback_nodes
    notes = [format_count(nodes, "EPContext node"), format_count(others, "fallback node")] if (nodes, others) != (1, 0) else []
    return ", ".join([*notes, *limits]), size


class Verify(ActionType[Verification, VerificationResult]):
    """Action type that runs compiled models and their sources, and compares the outputs."""

    doing = "checking numbers"
    doing_again = "checking numbers again"
    done = "checked"
    result = VerificationResult

    def resolve_inputs(self, action: Verification, needed: Sequence[Made], store: BlobStore) -> Verification:
        action = replace(action, compiled=tuple(made for made in needed if isinstance(made.action, SessionGroup)))
        made = {item.action.id: list_prepared_files(item, store) for item in needed if isinstance(item.action, Preparation)}
        members = (_select_reference(action, _add_made_source(checked, made)) for checked in action.members)
        return replace(action, members=tuple(members))

    def key_document(self, action: Verification, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
        return build_verification_document(action, digests, toolchain)

    def run(self, action: Verification, document: Mapping[str, Any], execution: Execution) -> VerificationResult:
        from epbuild.compile.verification import VerificationRun

        return VerificationRun(action, execution).result()

    def unmet_expectations(self, action: Verification, result: VerificationResult) -> Sequence[Problem]:
        return [problem for checked in action.members for problem in find_number_problems(action, checked, result, fails=True)]

    def warnings(self, action: Verification, result: VerificationResult) -> Sequence[Problem]:
        return [problem for checked in action.members for problem in find_number_problems(action, checked, result, fails=False)]

    def is_comparable(self, action: Verification) -> bool:
        return False  # the result contains numbers but no files

    def memory(self, action: Verification, measured: int | None) -> int:
        return action.memory_asked or super().memory(action, measured)

    def step_ends(self, action: Verification, result: VerificationResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, format_note(result))


class Measure(ActionType[ModelMeasurement, MeasurementResult]):
    """Action type that measures compiled models, on a device or by a user's command."""

    doing = "staging"
    doing_again = "measuring again"
    done = "measured"
    result = MeasurementResult

    def resolve_inputs(self, action: ModelMeasurement, needed: Sequence[Made], store: BlobStore) -> ModelMeasurement:
        return replace(action, compiled=tuple(needed))

    def key_document(self, action: ModelMeasurement, digests: Mapping[Path, str], toolchain: Mapping[str, Any]) -> dict[str, Any]:
        return build_measurement_document(action, digests, toolchain)

    def run(self, action: ModelMeasurement, document: Mapping[str, Any], execution: Execution) -> MeasurementResult:
        from epbuild.compile.measuring import measure

        return measure(action, execution)

    def unmet_expectations(self, action: ModelMeasurement, result: MeasurementResult) -> Sequence[Problem]:
        return list(check_figures(action, result))

    def is_comparable(self, action: ModelMeasurement) -> bool:
        return False  # two measurements differ

    def step_ends(self, action: ModelMeasurement, result: MeasurementResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, format_measurement_note(result))


def _add_made_source(checked: CheckedMember, made: Mapping[str, ModelFiles]) -> CheckedMember:
    """Return the member with the files of its source model, if a step makes the source model. `made` has the files by step."""
    if checked.member is None or checked.maker is None:
        return checked
    return replace(checked, member=replace(checked.member, original=made[checked.maker]))


def _select_reference(action: Verification, checked: CheckedMember) -> CheckedMember:
    """Return the member, with its prepared model as the reference if the original model cannot be the reference.

    That is the case if the inputs or outputs of the two models differ. Otherwise, return the member unchanged.
    """
    member = checked.member
    if member is None or member.prepared is None or member.original is None or checked.choice.reference is not None:
        return checked
    try:
        header = read_header(member.original.graph)
    except (OSError, MalformedModel):  # the check itself reports this error
        return checked
    differs = bool(find_other_values(header, action.compiled_of(checked).compiled.model(checked.name).source))
    return replace(checked, reference="prepared") if differs else checked


ACTION_TYPES: Mapping[type, ActionType[Any, Any]] = {
    Preparation: Prepare(),
    SessionGroup: Compile(),
    CopiedModel: Copy(),
    Verification: Verify(),
    ModelMeasurement: Measure(),
}
"""Action types by class of action.

Emissions have no entry, because the result of an emission is an output on disk. The session emits outputs, and the survey checks them.
"""


def get_action_type(action: Action) -> ActionType[Any, Any]:
    """Return the type of an action. Raises KeyError for an emission."""
    return ACTION_TYPES[type(action)]


def is_stored(action: Action) -> bool:
    """Return whether the store keeps the result of an action."""
    return type(action) in ACTION_TYPES


def read_result(action: Action, document: Mapping[str, Any]) -> ActionResult | None:
    """Return the result in an action's record, or None if the record is not in the format of this version of epbuild."""
    try:
        result: ActionResult = convert(document, get_action_type(action).result)
    except ValidationError:
        return None
    return result


def reject_reasons(action: Action, result: ActionResult) -> tuple[str, ...]:
    """Return the reasons why a result cannot be used: unmet expectations, or else missing parts."""
    kind = get_action_type(action)
    unmet = kind.unmet_expectations(action, result)
    return tuple(problem.message for problem in unmet) or tuple(kind.missing_parts(action, result).values())

"""Action type that compares outputs of compiled models and source models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from epbuild.actions.action_type import ActionType, KeyInputs, StepEnd
from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import Problem
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made, list_prepared_files
from epbuild.plan.member import ModelFiles
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import VerificationResult
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, build_verification_document
from epbuild.toolchain.identity import Identified
from epbuild.verify.live.judging import find_number_problems, format_note
from epbuild.verify.live.source import find_other_values

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution


class Verify(ActionType[Verification, VerificationResult]):
    """Action type that runs compiled models and their sources, and compares the outputs."""

    doing = "checking numbers"
    doing_again = "checking numbers again"
    done = "checked"
    result = VerificationResult

    def resolve_inputs(self, action: Verification, needed: Sequence[Made], store: BlobStore) -> Verification:
        action = dataclasses.replace(action, compiled=tuple(made for made in needed if isinstance(made.action, SessionGroup)))
        made = {item.action.id: list_prepared_files(item, store) for item in needed if isinstance(item.action, Preparation)}
        members = (_select_reference(action, _add_made_source(checked, made)) for checked in action.members)
        return dataclasses.replace(action, members=tuple(members))

    def key_document(self, action: Verification, inputs: KeyInputs) -> dict[str, Any]:
        return build_verification_document(action, inputs.digests, inputs.toolchain)

    def identity(self, action: Verification, toolchain: Identified) -> dict[str, Any]:
        return toolchain.identity(*action.identity_parts)

    def run(self, action: Verification, document: Mapping[str, Any], execution: Execution) -> VerificationResult:
        from epbuild.compile.alone import compile_alone
        from epbuild.verify.live.action import check_numbers

        return check_numbers(action, execution, compile_alone)

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

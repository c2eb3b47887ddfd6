"""Checks of numbers as a survey knows them: key document, judgement, ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import Problem
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.made import Made
from epbuild.plan.result import VerificationResult
from epbuild.plan.steps import SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, verification_document
from epbuild.survey.kind import KeyInputs, Kind, StepEnd
from epbuild.toolchain.identity import Identified
from epbuild.verify.live.judging import note, number_problems
from epbuild.verify.live.source import other_values


class Verifications(Kind[Verification, VerificationResult]):
    """What runs compiled models and compares their outputs with those of their sources."""

    doing = "checking numbers"
    doing_again = "checking numbers again"
    done = "checked"
    result = VerificationResult

    def resolved(self, action: Verification, needed: Sequence[Made], store: BlobStore) -> Verification:
        action = dataclasses.replace(action, compiled=tuple(made for made in needed if isinstance(made.action, SessionGroup)))
        return dataclasses.replace(action, members=tuple(_with_reference(action, checked) for checked in action.members))

    def document(self, action: Verification, inputs: KeyInputs) -> dict[str, Any]:
        return verification_document(action, inputs.digests, inputs.toolchain)

    def identity(self, action: Verification, toolchain: Identified) -> dict[str, Any]:
        return toolchain.identity(*action.uses)

    def unmet(self, action: Verification, result: VerificationResult) -> Sequence[Problem]:
        return [problem for checked in action.members for problem in number_problems(action, checked, result, fails=True)]

    def doubts(self, action: Verification, result: VerificationResult) -> Sequence[Problem]:
        return [problem for checked in action.members for problem in number_problems(action, checked, result, fails=False)]

    def compares(self, action: Verification) -> bool:
        return False  # it leaves figures, and no files

    def memory(self, action: Verification, measured: int | None) -> int:
        return action.memory_asked or super().memory(action, measured)

    def ends(self, action: Verification, result: VerificationResult) -> Iterator[StepEnd]:
        yield StepEnd(action.id, None, note(result))


def _with_reference(action: Verification, checked: CheckedMember) -> CheckedMember:
    """A member that knows what it is compared with: its source, unless what is prepared has other inputs or outputs."""
    member = checked.member
    if member is None or member.prepared is None or member.original is None or checked.choice.reference is not None:
        return checked
    try:
        header = read_header(member.original.graph)
    except (OSError, MalformedModel):  # which the check itself reports
        return checked
    alike = not other_values(header, action.compiled_of(checked).compiled.model(checked.name).source)
    return checked if alike else replace(checked, reference="prepared")

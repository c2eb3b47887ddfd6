"""Action type that compiles a session group, which may share weights."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from epbuild.actions.action_type import ActionType, KeyInputs, StepEnd
from epbuild.cache.blobs import BlobStore
from epbuild.catalog.facts import KnownDifference
from epbuild.core.errors import EnvironmentFailure, PlanError, Problem, StepId
from epbuild.core.units import format_count
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.made import Made, list_prepared_files
from epbuild.plan.member import Member
from epbuild.plan.possible import find_obstacle
from epbuild.plan.request import compile_document
from epbuild.plan.result import CompileResult
from epbuild.plan.shapes import fit_inputs, read_stored_header
from epbuild.plan.source_problems import find_source_problems
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.identity import Identified
from epbuild.verify.expectations import find_unmeasured, find_unmet_expectations, measure_shared_bytes, with_alone

if TYPE_CHECKING:
    from epbuild.toolchain.execution import Execution, ExecutionFactory

_G = TypeVar("_G", bound=SessionGroup)


class Compile(ActionType[SessionGroup, CompileResult]):
    """Action type that compiles the models of a session group in one process. The models may share weights."""

    doing = "staging"
    doing_again = "compiling again"
    done = "compiled"
    result = CompileResult

    def unknown_inputs(self, action: SessionGroup) -> Sequence[str]:
        return list_unfetched(action)

    def resolve_inputs(self, action: SessionGroup, needed: Sequence[Made], store: BlobStore) -> SessionGroup:
        return add_prepared_files(action, needed, store)

    def key_document(self, action: SessionGroup, inputs: KeyInputs) -> dict[str, Any]:
        return compile_document(action, inputs.digests, inputs.toolchain)

    def identity(self, action: SessionGroup, toolchain: Identified) -> dict[str, Any]:
        return toolchain.identity(*action.identity_parts)

    def check(self, action: SessionGroup) -> None:
        reason = find_obstacle(action.target, sys.platform)
        if reason is not None:
            raise EnvironmentFailure(
                Problem("EPB416", reason, StepId(action.id), "Compile on another machine that supports the target.")
            )
        check_prepared_models(action)

    def run(self, action: SessionGroup, document: Mapping[str, Any], execution: Execution) -> CompileResult:
        from epbuild.compile.executor import execute

        return execute(action, document, execution)

    def finish(self, action: SessionGroup, result: CompileResult, work: ExecutionFactory) -> Iterator[CompileResult]:
        from epbuild.compile.alone import compile_alone

        for member in find_unmeasured(action, result):
            doing = f"compiling {member.name} alone to measure the savings from sharing"
            with work.open(member.name) as execution:
                alone = compile_alone(action, member, execution, action.id, doing)
            result = with_alone(result, member, alone.context_bytes)
            yield result

    def rebuild(self, action: SessionGroup, document: Mapping[str, Any], execution: Execution) -> Mapping[str, Path]:
        from epbuild.compile.executor import rebuild

        return rebuild(action, document, execution)

    def unmet_expectations(self, action: SessionGroup, result: CompileResult) -> Sequence[Problem]:
        return find_unmet_expectations(action, result)

    def missing_parts(self, action: SessionGroup, result: CompileResult) -> Sequence[str]:
        return [
            f"the model '{member.name}' has not been compiled alone yet, which is needed to measure what sharing saves"
            for member in find_unmeasured(action, result)
        ]

    def known_differences(self, action: SessionGroup) -> Sequence[KnownDifference]:
        return action.target.known_differences

    def known_to_differ(self, action: SessionGroup) -> str | None:
        return action.target.known_to_differ(allow_nondeterminism=action.allow_nondeterminism)

    def accepts_other_bytes(self, action: SessionGroup) -> bool:
        return action.allow_nondeterminism

    def starts_another_process(self, action: SessionGroup) -> bool:
        return action.min_shared_ratio is not None

    def size(self, action: SessionGroup) -> int:
        return measure_models(action)

    def memory(self, action: SessionGroup, measured: int | None) -> int:
        return action.memory or super().memory(action, measured)

    def step_ends(self, action: SessionGroup, result: CompileResult) -> Iterator[StepEnd]:
        took = result.measured.members
        for step, member in itertools.zip_longest(action.steps, action.members):
            note, size = _describe_end(action, result, member.name if member else None)
            seconds = took.get(member.name) if member else None
            yield StepEnd(step, 0.0 if seconds is None and step != action.id else seconds, note, size)


def list_unfetched(group: SessionGroup) -> list[str]:
    """Return a reason for each model of a group that has not been fetched."""
    return [
        f"the model '{member.name}' has not been fetched yet"
        for member in group.members
        if not member.has_files and member.prepared is None
    ]


def add_prepared_files(group: _G, needed: Sequence[Made], store: BlobStore) -> _G:
    """Return a group with the paths of its prepared members in the store."""
    files = {made.action.id: list_prepared_files(made, store) for made in needed}
    members = (
        _add_shapes(member.with_files(files[member.prepared])) if member.prepared in files else member for member in group.members
    )
    return replace(group, members=tuple(members))


def check_prepared_models(group: SessionGroup) -> None:
    """Raise PlanError if the prepared models of a group have problems. The planner has checked all other models."""
    headers = {member.name: read_header(member.graph) for member in group.members if member.prepared is not None}
    problems = find_source_problems(group, headers)
    if problems:
        raise PlanError(*problems)


def measure_models(group: SessionGroup) -> int:
    """Return the total bytes of a group's models. For models that are not prepared yet, use the size of the user's files."""
    beginnings = (path for member in group.members if not member.has_files for path in member.beginning)
    return sum(path.stat().st_size for path in {*group.files, *beginnings})


def _add_shapes(member: Member) -> Member:
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
        files |= {name for model in models for name in model.binaries}
    size = result.size(files)
    if member is None:
        note = format_count(len(models), "model")
        if (found := measure_shared_bytes(group, result)) is not None:
            note += f", sharing saves {found.saved:,} of {found.alone:,} bytes (ratio {found.shown_ratio})"
        if (shared := result.shared_initializers) is not None:
            note += f", weights shared in ONNX: {shared.stored_bytes:,} bytes instead of {shared.total_bytes:,}"
        return note, size
    nodes, others = len(models[0].nodes), models[0].fallback_nodes
    return (
        "" if (nodes, others) == (1, 0) else f"{format_count(nodes, 'EPContext node')}, {format_count(others, 'fallback node')}"
    ), size

"""Compilation of one member of a sharing group without sharing.

The key and the record are those of an ordinary session group with one model. So a member is compiled only once, whether its result is
needed to measure the savings from sharing, to check numbers, or for a group that does not share weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from epbuild.cache.leases import lease
from epbuild.compile.executor import build_key_document, execute
from epbuild.core.errors import BuildError, EpbuildError, Problem, StepId
from epbuild.engine.events import OutputOf, StepOutput
from epbuild.plan.key import compute_action_key, describe_differences
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult, find_result, make_action_record, open_action_records
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.execution import Execution


def compile_alone(group: SessionGroup, member: Member, execution: Execution, step: str, doing: str) -> CompileResult:
    """Return the result of a sharing group's member without sharing. The member is compiled only if the store has no result.

    Progress and problems are reported for `step`. `doing` is the progress text of a compile. Raises the errors of `execute`.
    """
    name, progress = member.name, execution.progress
    compile_step = group.steps[group.members.index(member)]
    alone = replace(group, members=(member,), share=False, steps=(compile_step,))
    records = open_action_records(execution.store.root)
    try:
        document = build_key_document(alone, execution)
        key = compute_action_key(document)
        wait = StepOutput(step, f"waiting for another build that compiles {name} alone")
        with lease(execution.store.root, key, on_wait=partial(progress.report, wait), cancelled=execution.cancelled):
            found = find_result(records, execution.store, key, CompileResult)
            if found is not None:
                progress.report(StepOutput(step, f"restored {name}, which was compiled alone before"))
                return found
            progress.report(StepOutput(step, doing))
            result = execute(
                alone, document, dataclasses.replace(execution, progress=OutputOf(progress, step, f"{name} alone: "))
            )
            _check_unchanged(alone, document, execution)
            records.put(key, make_action_record(document, result))
            return result
    except EpbuildError as error:
        problems = (
            replace(problem, message=f"the model '{name}' could not be compiled alone: {problem.message}", where=StepId(step))
            for problem in error.problems
        )
        raise type(error)(*problems) from error


def _check_unchanged(group: SessionGroup, document: Mapping[str, Any], execution: Execution) -> None:
    """Raise BuildError if an input of a group no longer matches the group's key document. Not every execution watches all inputs."""
    now = build_key_document(group, dataclasses.replace(execution, environment=execution.environment.refresh()))
    if changes := describe_differences(document, now):
        message = f"an input changed meanwhile: {'; '.join(changes)}"
        raise BuildError(Problem("EPB415", message, StepId(group.id), "The result was discarded. Run the command again."))

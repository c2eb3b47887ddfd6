"""Compiles of session groups: checked, made, finished, made again.

Only a member compiled alone shows what sharing saves: that is done where the recipe's `expect` asks for it, and the bytes are kept with
the result.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from epbuild.compile.executor import execute, remake
from epbuild.core.errors import EnvironmentFailure, EpbuildError, PlanError, Problem, StepId
from epbuild.engine.events import OutputOf, StepOutput
from epbuild.onnxfile.read.headers import read_header
from epbuild.plan.member import Member
from epbuild.plan.possible import obstacle
from epbuild.plan.result import CompileResult
from epbuild.plan.source_problems import source_problems
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.model import Expectation
from epbuild.toolchain.execution import Execution, Workplace
from epbuild.verify.expectations import unmeasured, with_alone


class GroupMaker:
    """Compiles session groups."""

    def check(self, action: SessionGroup) -> None:
        reason = obstacle(action.target, sys.platform)
        if reason is not None:
            raise EnvironmentFailure(Problem("EPB416", reason, StepId(action.id), "Build it on a machine that can."))
        # Of the others this was looked at when the plan was made.
        headers = {member.name: read_header(member.graph) for member in action.members if member.prepared is not None}
        problems = source_problems(action, headers)
        if problems:
            raise PlanError(*problems)

    def make(self, action: SessionGroup, execution: Execution) -> CompileResult:
        return execute(action, execution)

    def finish(self, action: SessionGroup, result: CompileResult, work: Workplace) -> Iterator[CompileResult]:
        for member in unmeasured(action, result):
            with work.open(member.name) as execution:
                result = with_alone(result, member, measure_alone(action, member, execution))
            yield result

    def remake(self, action: SessionGroup, execution: Execution) -> Mapping[str, Path]:
        return remake(action, execution)


def measure_alone(group: SessionGroup, member: Member, execution: Execution) -> int:
    """The bytes of the context binaries and data that a member of a sharing group makes when it is compiled alone, un-shared.

    Compiled like any session group, in a fresh process; progress and problems are the share step's. Raises what `execute` does.
    """
    share, name = group.steps[-1], member.name
    compile_step = group.steps[group.members.index(member)]
    alone = replace(group, members=(replace(member, expect=Expectation()),), share=False, steps=(compile_step,))
    execution.progress.report(StepOutput(share, f"compiling {name} alone, to measure what sharing saves"))
    try:
        files = remake(alone, dataclasses.replace(execution, progress=OutputOf(execution.progress, share, f"{name} alone: ")))
    except EpbuildError as error:
        problems = (
            replace(problem, message=f"the model '{name}' could not be measured alone: {problem.message}", where=StepId(share))
            for problem in error.problems
        )
        raise type(error)(*problems) from error
    return sum(path.stat().st_size for path in files.values() if path != execution.staging / member.output)

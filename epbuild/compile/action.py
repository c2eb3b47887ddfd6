"""Compiles of session groups: checked, made, finished, made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epbuild.compile.executor import execute, remake
from epbuild.compile.sharing import measure_alone
from epbuild.core.errors import EnvironmentFailure, PlanError, Problem, StepId
from epbuild.core.typed_json import from_json
from epbuild.onnxfile.headers import read_header
from epbuild.plan.possible import obstacle
from epbuild.plan.result import CompileResult
from epbuild.plan.source_problems import source_problems
from epbuild.plan.steps import SessionGroup
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

    def make(self, action: SessionGroup, execution: Execution) -> dict[str, Any]:
        return execute(action, execution)

    def finish(self, action: SessionGroup, result: Mapping[str, Any], work: Workplace) -> Iterator[Mapping[str, Any]]:
        found = from_json(CompileResult, result)
        for member in unmeasured(action, found):
            with work.open(member.name) as execution:
                found = with_alone(found, member, measure_alone(action, member, execution))
            yield {**result, "alone": dict(found.alone)}

    def remake(self, action: SessionGroup, execution: Execution) -> Mapping[str, Path]:
        return remake(action, execution)

"""What sharing saves: a sharing group's bytes against those that its members come to when each is compiled alone.

Nothing but such a compile says what a member comes to alone: it is done where the recipe's `expect` asks for it, and the bytes are kept
with the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from epbuild.compile.executor import Execution, measure
from epbuild.core.errors import EpbuildError, StepId
from epbuild.engine.events import OutputOf, StepOutput
from epbuild.plan.steps import Member, SessionGroup
from epbuild.recipe.model import Expectation
from epbuild.verify.compiled import SharedBytes

_ALONE = "alone"  # where a result holds the bytes of each member compiled alone, by the member's name


def unmeasured(group: SessionGroup, result: Mapping[str, Any]) -> tuple[Member, ...]:
    """The members whose size alone the group's `expect` needs, and a result lacks."""
    if group.min_shared_ratio is None:
        return ()
    return tuple(member for member in group.members if member.name not in result.get(_ALONE, {}))


def with_alone(result: Mapping[str, Any], member: Member, size: int) -> dict[str, Any]:
    """A result that also says what a member comes to alone."""
    return {**result, _ALONE: {**result.get(_ALONE, {}), member.name: size}}


def shared_bytes(result: Mapping[str, Any]) -> SharedBytes:
    """What sharing comes to, by a result in which every member is measured."""
    names = {name for model in result["models"] for name in (*model["binaries"], *model["data"])}
    return SharedBytes(sum(result["artifacts"][name]["size"] for name in names), sum(result[_ALONE].values()))


def measure_alone(group: SessionGroup, member: Member, execution: Execution) -> int:
    """The bytes of the context binaries and data that a member of a sharing group makes when it is compiled alone, un-shared.

    It is compiled like any session group, in a fresh process; progress and problems are told of the share step. Raises what `execute` does.
    """
    share, name = group.steps[-1], member.name

    compile_step = group.steps[group.members.index(member)]
    alone = replace(group, members=(replace(member, expect=Expectation()),), share=False, steps=(compile_step,))
    execution.progress.report(StepOutput(share, f"compiling {name} alone, to measure what sharing saves"))
    try:
        return measure(alone, replace(execution, progress=OutputOf(execution.progress, share, f"{name} alone: ")))
    except EpbuildError as error:
        problems = (
            replace(problem, message=f"the model '{name}' could not be measured alone: {problem.message}", where=StepId(share))
            for problem in error.problems
        )
        raise type(error)(*problems) from error

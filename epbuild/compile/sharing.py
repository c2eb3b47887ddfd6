"""A member of a sharing group compiled alone, to measure what sharing saves.

Only such a compile shows what a member comes to alone: it is done where the recipe's `expect` asks for it, and the bytes are
kept with the result.
"""

from __future__ import annotations

from dataclasses import replace

from epbuild.compile.executor import measure
from epbuild.core.errors import EpbuildError, StepId
from epbuild.engine.events import OutputOf, StepOutput
from epbuild.plan.member import Member
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.model import Expectation
from epbuild.toolchain.execution import Execution


def measure_alone(group: SessionGroup, member: Member, execution: Execution) -> int:
    """The bytes of the context binaries and data that a member of a sharing group makes when it is compiled alone, un-shared.

    Compiled like any session group, in a fresh process; progress and problems are the share step's. Raises what `execute` does.
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

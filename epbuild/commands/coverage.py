"""Coverage: how far the EPs of each target take each model of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from epbuild.commands.events import ModelCovered
from epbuild.core.errors import Problem
from epbuild.core.typed_json import from_json
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.plan.verification import verification_id
from epbuild.verify.fallback import Outside

_FIGURES = {"cosine": 6, "snr_db": 1}
"""The figures of numbers that the table has, all of which are better when they are larger, with the decimals that mean anything."""
_NOT_TRIED = "what it needs failed"


def covered_models(
    plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, Sequence[Problem]], touched: Container[str]
) -> list[ModelCovered]:
    """Each model of a plan for all its targets, in the plan's order, once a build has ended: those of session groups that were `touched`.

    `results` are those that are known, also where they are not as the recipe wants them; `failures` have why actions failed. What a build
    did not come to is left out.
    """
    rows = list(_rows(plan, results, failures, touched))
    order = {model: number for number, model in enumerate(dict.fromkeys(row.model for row in rows))}
    return sorted(rows, key=lambda row: order[row.model])


def _rows(
    plan: Plan, results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, Sequence[Problem]], touched: Container[str]
) -> Iterator[ModelCovered]:
    names = Counter((group.target.name, member.name) for group in plan.session_groups.values() for member in group.members)
    for ident, group in plan.session_groups.items():
        result, problems = results.get(ident), _problems(plan, ident, failures)
        if ident not in touched or (result is None and problems is None):
            continue
        for number, member in enumerate(group.members):
            several = names[group.target.name, member.name] > 1
            row = ModelCovered(
                step=group.steps[number],
                model=f"{group.group}/{member.name}" if several else member.name,
                target=group.target.name,
                outcome="failed",
            )
            if result is not None:
                accuracy = _accuracy(results.get(verification_id(group.group, group.target.name), {}), member.name)
                yield replace(_covered(row, from_json(CompileResult, result), member.name), accuracy=accuracy)
            else:
                yield replace(row, reason=_reason(group, row.step, problems or ()))


def _covered(row: ModelCovered, result: CompileResult, member: str) -> ModelCovered:
    model = result.model(member)
    outside = Outside.of(model)
    return replace(
        row,
        outcome="partial" if outside.count else "whole",
        ep_context_nodes=len(model.nodes),
        outside=outside,
        size=result.size(model.files),
        seconds=result.measured.members.get(member),
    )


def _accuracy(checked: Mapping[str, Any], member: str) -> dict[str, float] | None:
    """The worst figures of all outputs of a model, by what its numbers came to; None where they were not looked at, or not found."""
    rows = [row for row in checked.get("figures", ()) if row["member"] == member]
    found = {name: [row[name] for row in rows if row[name] is not None] for name in _FIGURES}
    return {name: round(min(values), _FIGURES[name]) for name, values in found.items() if values} or None


def _problems(plan: Plan, ident: str, failures: Mapping[str, Sequence[Problem]]) -> Sequence[Problem] | None:
    """Why an action failed; nothing where something that it needs did; None where neither did."""
    if ident in failures:
        return failures[ident]
    waiting = list(plan.actions[ident].needs)
    while waiting:
        needed = waiting.pop()
        if needed in failures:
            return ()
        waiting += plan.actions[needed].needs
    return None


def _reason(group: SessionGroup, step: str, problems: Sequence[Problem]) -> str:
    """Why one model failed: its own problem, or that of a model that is compiled with it."""
    if not problems:
        return _NOT_TRIED
    mine = [problem for problem in problems if problem.where in (step, group.id)] or list(problems)
    problem = mine[0]
    reason = problem.message if problem.reason is None else problem.reason
    if problem.where in group.steps and problem.where not in (step, group.id):
        return f"it shares weights with '{str(problem.where).rsplit('/', 1)[-1]}', which failed: {reason}"
    return reason

"""Coverage of the models of a plan by the EPs of each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from epbuild.core.errors import Problem
from epbuild.core.summary import Summarized, Summary
from epbuild.plan.measuring import MeasuredMember, ModelMeasurement, make_measurement_id
from epbuild.plan.result import ActionResult, CompileResult, MeasurementResult, ModelResult, VerificationResult
from epbuild.plan.steps import Action, Plan, SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, make_verification_id
from epbuild.session.events import Coverage, ModelCovered
from epbuild.verify.fallback import FallbackNodes
from epbuild.verify.figures import check_member_figures
from epbuild.verify.live.judging import find_number_problems

_FIGURES = {"cosine": 6, "snr_db": 1}
"""Metrics in the coverage table, with their number of decimals. Larger values are better."""
PARTIAL_CODES = {"EPB609", "EPB655"}
"""Codes of problems with the EPContext nodes or the fallback nodes of a compiled model, which its outcome `partial` shows."""
_NOT_TRIED = "a step that the model needs failed"
COVERAGE_COLUMNS = ("model", "target", "outcome", "fallback nodes", "reason")
"""Headings of coverage in summaries."""


class CoveredModels(Summarized, tuple[ModelCovered, ...]):
    """Coverage of all models for all targets, in plan order."""

    __slots__ = ()

    def summarize(self) -> Summary:
        """Return the outcome of each model for each target."""
        counts = Counter(row.outcome for row in self)
        rows = []
        for row in self:
            count, why = (str(row.outside.count), row.outside.why) if row.outside is not None else ("", "")
            rows.append((row.model, row.target, row.outcome, count, row.reason or why))
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        return Summary(f"coverage: {outcomes or 'no models'}", COVERAGE_COLUMNS, rows)


def find_covered_models(
    plan: Plan, results: Mapping[str, ActionResult], failures: Mapping[str, Sequence[Problem]], touched: Container[str]
) -> list[ModelCovered]:
    """Return the coverage of each model for each target of the session groups `touched`. Rows of one model are adjacent.

    `results` has all known results, even if they do not meet expectations. `failures` has the problems of failed actions. Models that
    the build did not reach are left out.
    """
    return [row for row in list_all_models(plan, results, failures, touched) if row.outcome != "not built"]


def list_all_models(
    plan: Plan,
    results: Mapping[str, ActionResult],
    failures: Mapping[str, Sequence[Problem]],
    touched: Container[str] | None = None,
) -> list[ModelCovered]:
    """Return the coverage of all models, or of those in the session groups `touched`, including models that were not built."""
    names = Counter((group.target.name, member.name) for group in plan.session_groups.values() for member in group.members)
    rows: list[ModelCovered] = []
    for ident, group in plan.session_groups.items():
        if touched is not None and ident not in touched:
            continue
        problems, target = _find_problems(plan, ident, failures), group.target.name
        verify, measure = make_verification_id(group.group, target), make_measurement_id(group.group, target)
        result, checked = results.get(ident), results.get(verify)
        for step, member in zip(group.steps, group.members, strict=False):
            name = f"{group.group}/{member.name}" if names[target, member.name] > 1 else member.name
            if not isinstance(result, CompileResult):
                failed = problems is not None
                reason = _explain_failure(group, step, problems or ()) if failed else None
                rows.append(ModelCovered(step, name, target, "failed" if failed else "not built", reason=reason))
                continue
            model = result.model(member.name)
            unverified = _find_check_problems(plan.actions.get(verify), member.name, checked, failures)
            unmeasured = _find_check_problems(plan.actions.get(measure), member.name, results.get(measure), failures)
            outcome = _get_outcome(group, model, is_verified=not unverified, is_measured=not unmeasured)
            reason = next((problem.message for problem in (*unverified, *unmeasured)), None)
            if problems and not _stays_partial(outcome, problems):
                outcome, reason = "failed", _explain_failure(group, step, problems)
            row = ModelCovered(
                step,
                name,
                target,
                outcome=outcome,
                ep_context_nodes=len(model.nodes),
                outside=FallbackNodes.of(model) if group.compiled else None,
                reason=reason,
                size=result.size(model.files),
                seconds=result.measured.members.get(member.name),
                accuracy=_find_accuracy(checked, member.name),
                verify=verify if unverified else None,
                measure=measure if unmeasured else None,
            )
            rows.append(row)
    order = {model: number for number, model in enumerate(dict.fromkeys(row.model for row in rows))}
    return sorted(rows, key=lambda row: order[row.model])


def _get_outcome(group: SessionGroup, model: ModelResult, *, is_verified: bool, is_measured: bool) -> Coverage:
    if not is_verified:
        return "failed verify"
    if not is_measured:
        return "failed measure"
    if not group.compiled:
        return "on the CPU"
    return "partial" if model.fallback_nodes else "whole"


def _stays_partial(outcome: Coverage, problems: Sequence[Problem]) -> bool:
    """Return whether a model stays partial although its result does not meet `expect`, because only its nodes are the problem."""
    return outcome == "partial" and {problem.code for problem in problems} <= PARTIAL_CODES


def _find_check_problems(
    action: Action | None, member: str, result: ActionResult | None, failures: Mapping[str, Sequence[Problem]]
) -> Sequence[Problem]:
    """Return the problems of a model's `verify` or `measure` step. Empty if the step passed, was not run, or does not exist."""
    if not isinstance(action, Verification | ModelMeasurement):
        return ()
    members = {checked.name: checked for checked in action.members}
    match members.get(member), action, result:
        case None, _, _:
            return ()
        case CheckedMember() as checked, Verification(), VerificationResult():
            return tuple(find_number_problems(action, checked, result, fails=True))
        case MeasuredMember() as measured, ModelMeasurement(), MeasurementResult():
            return tuple(check_member_figures(action, measured, result))
    return failures.get(action.id, ())  # the failure applies to all models of the group, as none of them is emitted


def _find_accuracy(checked: ActionResult | None, member: str) -> dict[str, float] | None:
    """Return the worst value of each accuracy metric over all outputs of a model, or None if there are no measurements."""
    if not isinstance(checked, VerificationResult):
        return None
    return find_worst_figures([asdict(row) for row in checked.figures if row.member == member])


def find_worst_figures(rows: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Return the worst value of each accuracy metric in `rows`, which has a row for each output, or None if there are no values."""
    found: dict[str, list[float]] = {name: [] for name in _FIGURES}
    for row in rows:
        for name, values in found.items():
            if row.get(name) is not None:
                values.append(row[name])
    return {name: round(min(values), _FIGURES[name]) for name, values in found.items() if values} or None


def _find_problems(plan: Plan, ident: str, failures: Mapping[str, Sequence[Problem]]) -> Sequence[Problem] | None:
    """Return the problems of an action that failed, () if only an action that it needs failed, or None if nothing failed."""
    if ident in failures:
        return failures[ident]
    waiting = list(plan.actions[ident].needs)
    while waiting:
        needed = waiting.pop()
        if needed in failures:
            return ()
        waiting += plan.actions[needed].needs
    return None


def _explain_failure(group: SessionGroup, step: str, problems: Sequence[Problem]) -> str:
    """Return why a model failed: its own problem, or the problem of another model in the group."""
    if not problems:
        return _NOT_TRIED
    mine = [problem for problem in problems if problem.where in (step, group.id)] or list(problems)
    problem = mine[0]
    reason = problem.message if problem.reason is None else problem.reason
    if problem.where in group.steps and problem.where not in (step, group.id):
        return f"it shares weights with '{str(problem.where).rsplit('/', 1)[-1]}', which failed: {reason}"
    return reason

"""Judgment of the results of verification steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from epbuild.catalog.facts import METRICS, Thresholds
from epbuild.core.errors import Problem, StepId
from epbuild.plan.made import Made
from epbuild.plan.result import FigureRow, Losses, TaskMetric, UnjudgedMember, VerificationResult
from epbuild.plan.verification import CheckedMember, Verification
from epbuild.recipe.model import MetricChoice
from epbuild.verify.live.verdict import (
    OTHER_INPUTS,
    OutputVerdict,
    Rules,
    decide_outcome,
    format_figures,
    format_losses,
    format_output_figures,
    list_hints,
    rank_cosine,
)

_UNSHARED = "These figures are for the same model compiled without sharing"
_EMIT = "To emit the model anyway, write `unjudged: emit` in the recipe's `verify`; the manifest then records the reason."
_CHANGE = "The thresholds are set by `metrics` in the recipe's `verify`, or else by the catalog for the EP."
_WEAK = (
    "The model is still emitted, because generated inputs are weak evidence. "
    "To fail the build instead, set `data` to files or set `metrics` in the recipe's `verify`."
)
_FIGURE_KEYS = ("output", "cosine", "snr_db", "max_abs", "max_rel", "top1", "samples", "evidence", "reference")
"""Figures of an output that a manifest lists."""


def list_numbers(made: Made, member: str) -> dict[str, Any]:
    """Return a member's entries for the manifest: the figures of each output, and the reason if they were not judged."""
    action, result = made.action, made.result
    if not isinstance(action, Verification) or not isinstance(result, VerificationResult):
        return {}
    if member not in {checked.name for checked in action.members}:
        return {}
    # Machines sum in different orders, so more digits would differ between machines.
    device = {"device": "real"} if action.is_on_real_device else {}
    figures = [
        {name: round_figure(name, getattr(row, name)) for name in _FIGURE_KEYS}
        | ({"unshared": True} if row.unshared else {})
        | (device if row.command_device is None else {"command_device": row.command_device})
        for row in result.figures
        if row.member == member
    ]
    unjudged = result.unjudged_member(member)
    reason = (
        unjudged.reason
        if unjudged is not None
        else "; ".join(
            f"{verdict.figures.output}: {verdict.reason}"
            for verdict in judge_outputs(action, action.of(member), result)
            if verdict.outcome == "unjudgeable"
        )
    )
    metrics = {row.name: {"compiled": row.compiled, "source": row.source} for row in result.metrics if row.member == member}
    return {"figures": figures} | ({"metrics": metrics} if metrics else {}) | ({"unjudged": reason} if reason else {})


def round_figure(name: str, value: Any) -> Any:
    """Round a figure to the digits that are the same on all machines."""
    if value is None or name not in METRICS:
        return value
    if name in ("max_abs", "max_rel"):
        return float(f"{value:.3g}")
    return round(value, 1 if name == "snr_db" else 6)


def find_number_problems(
    action: Verification, checked: CheckedMember, result: VerificationResult, *, fails: bool
) -> Iterator[Problem]:
    """Yield the problems with a member's outputs: those that fail the step if `fails` is set, or else those that are warnings.

    Some differences are only warnings, because generated inputs are weak evidence.
    """
    if fails:
        yield from (_make_metric_problem(action, found) for found in judge_metrics(checked, result) if found.missed)
    unjudged = result.unjudged_member(checked.name)
    if unjudged is not None and not unjudged.by_inputs:
        if checked.must_be_judged and fails:
            yield make_unjudged_problem(action, unjudged)
        return
    first = next((row for row in result.figures if row.member == checked.name), None)
    if first is None and unjudged is None:
        return
    verdicts = judge_outputs(action, checked, result)
    outcome = decide_outcome(verdicts) if unjudged is None else "unjudgeable"
    on = (
        "generated inputs"
        if first is None
        else f"{first.on}{'; generated inputs: weak evidence' if first.evidence == 'made' else ''}"
    )
    alone = f". {_UNSHARED}" if first is not None and first.unshared else ""
    hint = list_hints(verdicts) or OTHER_INPUTS
    if outcome == "failed" and checked.is_gate is fails:
        worst = f"; the worst value, for {first.at}, is {first.worst}" if first is not None and first.worst else ""
        message = (
            f"the outputs of the model '{checked.name}' differ too much from the outputs of the CPU EP ({on}): "
            f"{format_output_figures(verdicts)}{worst}{_describe_losses(verdicts)}{alone}"
        )
        yield Problem("EPB646", message, StepId(action.id), f"{hint} {_CHANGE if fails else _WEAK}")
    # With `unjudged: emit`, the manifest records the reason, so there is no warning.
    if outcome == "unjudgeable" and checked.must_show_something is fails and (fails or checked.must_be_judged):
        figures = unjudged.reason.rstrip(".") if unjudged is not None else format_output_figures(verdicts)
        message = f"the outputs of the model '{checked.name}' cannot be judged ({on}): {figures}{alone}"
        yield Problem("EPB665", message, StepId(action.id), f"{hint} {_EMIT if fails else _WEAK}")


class JudgedMetric(Struct, frozen=True):
    """Task metric of a member, and the limits that it misses, as clauses."""

    metric: TaskMetric
    missed: tuple[str, ...]

    @property
    def text(self) -> str:
        """The values for the compiled model and its source. All digits are shown, so that a value never looks equal to its limit."""
        return f"{self.metric.name} is {self.metric.compiled!r}, and {self.metric.source!r} for the source"


def judge_metrics(checked: CheckedMember, result: VerificationResult) -> list[JudgedMetric]:
    """Judge the task metrics of a member. A limit on a metric that the command did not compute fails when the command runs."""
    choice = checked.choice.metric
    rows = [row for row in result.metrics if row.member == checked.name] if choice is not None else []
    return [JudgedMetric(row, tuple(_list_missed_limits(choice, row))) for row in rows if choice is not None]


def _list_missed_limits(choice: MetricChoice, row: TaskMetric) -> Iterator[str]:
    for key, bound, sign, what in (
        ("min", choice.min.get(row.name), 1, ""),
        ("max", choice.max.get(row.name), -1, ""),
        ("max_drop", choice.max_drop.get(row.name), 1, "below the source"),
        ("max_rise", choice.max_rise.get(row.name), -1, "above the source"),
    ):
        if bound is None:
            continue
        least = bound if not what else row.source - sign * bound
        # Decimal fractions are not exact: 0.9 - 0.1 is less than 0.8.
        if sign * (row.compiled - least) < -1e-12 * max(1.0, abs(least)):
            yield f"{key} allows {f'{bound!r} {what}'.strip()}"


def _make_metric_problem(action: Verification, found: JudgedMetric) -> Problem:
    message = f"the model '{found.metric.member}' misses a limit of 'metric': {found.text}; {', '.join(found.missed)}"
    return Problem("EPB670", message, StepId(action.id), "Change the model, its preparations or its target, or change the limit.")


def _describe_losses(verdicts: Sequence[OutputVerdict]) -> str:
    """Return a clause with the losses of the worst failed output, or an empty text if they were not measured."""
    failed = [verdict.figures for verdict in verdicts if verdict.outcome == "failed"]
    worst = min(failed, key=rank_cosine, default=None)
    return f"; {format_losses(worst.losses)}" if isinstance(worst, FigureRow) and worst.losses is not None else ""


def judge_outputs(action: Verification, checked: CheckedMember, result: VerificationResult) -> list[OutputVerdict]:
    """Judge each output of a member. All outputs pass if only task metrics decide."""
    if checked.is_judged_by_metric:
        return [OutputVerdict(row, "passed") for row in result.figures if row.member == checked.name]
    return [_make_rules(action, checked, row).judge(row) for row in result.figures if row.member == checked.name]


def list_thresholds(action: Verification, checked: CheckedMember, row: FigureRow) -> Mapping[str, float]:
    """Return the thresholds for the figures of an output, by name."""
    limits = Thresholds() if checked.is_judged_by_metric else _make_rules(action, checked, row).select_thresholds(row)
    return {name: value for name in METRICS if (value := getattr(limits, name)) is not None}


def _make_rules(action: Verification, checked: CheckedMember, row: FigureRow) -> Rules:
    return Rules(action.numbers, row.quantized, checked.user_thresholds)


def make_unjudged_problem(action: Verification, unjudged: UnjudgedMember) -> Problem:
    """Return the problem of a member whose numbers this machine cannot judge."""
    message = f"the outputs of the model '{unjudged.member}' cannot be judged here: {unjudged.reason.rstrip('.')}"
    hint = f"Build the model on a machine where {action.target.eps[0].entry.ep} can run the compiled model. {_EMIT}"
    return Problem("EPB666", message, StepId(action.id), hint)


def format_note(result: VerificationResult) -> str:
    """Return the note for a finished step, with its worst figures."""
    cosines = [row.cosine for row in result.figures if row.cosine is not None]
    ratios = [row.snr_db for row in result.figures if row.snr_db is not None]
    parts = [f"cosine {min(cosines):.6f}"] if cosines else []
    parts += [f"{min(ratios):.1f} dB"] if ratios else []
    if not parts and result.figures:
        parts = [format_figures(result.figures[0])]
    parts = [f"{row.name} {row.compiled:.6g} (source {row.source:.6g})" for row in result.metrics] + parts
    losses = [row.losses for row in result.figures if row.losses is not None]
    parts += [f"{who} {min(ratios):.1f} dB" for who, ratios in _list_loss_ratios(losses).items()]
    if any(row.evidence == "made" for row in result.figures):
        parts.append("generated inputs: weak evidence")
    parts += [f"run by the command on '{name}'" for name in dict.fromkeys(row.command_device for row in result.figures) if name]
    parts += [f"{len(result.unjudged)} not judged"] if result.unjudged else []
    return ", ".join(parts)


def _list_loss_ratios(losses: Sequence[Losses]) -> dict[str, list[float]]:
    """Return the signal-to-noise ratios of the preparations and of the EP. Empty if one of them loses nothing."""
    found = {
        "preparations": [loss.preparation.snr_db for loss in losses if loss.preparation.snr_db is not None],
        "EP": [loss.ep.snr_db for loss in losses if loss.ep.snr_db is not None],
    }
    return found if all(found.values()) else {}

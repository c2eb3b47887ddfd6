"""Verdicts on outputs, based on their figures.

The figures of some outputs prove nothing, so these outputs never pass: outputs that are not finite on the CPU EP itself,
constant outputs, and outputs below the precision of the EP or below a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from epbuild.catalog.facts import METRICS, Numbers, Thresholds
from epbuild.core.units import format_count
from epbuild.plan.result import Figures, Loss, Losses

Outcome = Literal["passed", "failed", "unjudgeable"]

_UPPER_BOUNDS = frozenset({"max_abs", "max_rel"})
_MAX_SHOWN = 3
# An overflow produces a multiple of the largest number. Limits: the relative distance from a multiple, and the
# multiple.
_AT_LIMIT = 1e-3
_MAX_MULTIPLE = 16
OTHER_INPUTS = "Provide representative inputs with --inputs, or with `data` in the recipe's `verify`."


class OutputVerdict(Struct, frozen=True):
    """Verdict on one output."""

    figures: Figures
    outcome: Outcome
    reason: str = ""
    """Reason why the output did not pass, as a clause."""
    hint: str | None = None
    own_scale: bool = False
    """True if the output was judged by its own scale, because even zeros would meet the user's thresholds."""


class Rules(Struct, frozen=True):
    """Rules for judging outputs: the user's thresholds, or else the catalog's thresholds for this EP and kind of model."""

    numbers: Numbers
    quantized: bool = False
    """True if the source computes with quantized values."""
    user_thresholds: Thresholds = field(default_factory=Thresholds)
    bound: float | None = None
    """Tolerance of each element if another check judges elements separately.

    These rules then judge only outputs whose expected values are all within the tolerance of zero.
    """

    @property
    def usual(self) -> Thresholds:
        return self.numbers.quantized if self.quantized else self.numbers.floats

    def select_thresholds(self, figures: Figures) -> Thresholds:
        asked = self.user_thresholds
        if self.bound is not None:
            return self.usual if self._is_met_by_zeros(figures) else Thresholds()
        if figures.kind == "exact":
            by_size = asked.max_abs is not None and asked.top1 is None
            return Thresholds(max_abs=asked.max_abs) if by_size else Thresholds(top1=1.0 if asked.top1 is None else asked.top1)
        if asked != Thresholds():
            return asked.over(self.usual) if self._is_met_by_zeros(figures) else asked
        # Two steps of an 8-bit quantization. Quantized values can be stored with more bits.
        return Thresholds(max_abs=float(2 << (figures.bits - 8))) if figures.kind == "steps" else self.usual

    def judge(self, figures: Figures) -> OutputVerdict:
        if figures.undefined:
            count = f"{figures.undefined:,} of {figures.elements:,} values"
            reason = f"the CPU EP itself returns NaN or infinity for {count} with these inputs"
            return OutputVerdict(figures, "unjudgeable", reason, OTHER_INPUTS)
        if figures.elements == 0:
            return OutputVerdict(figures, "unjudgeable", "it has no elements with these inputs", OTHER_INPUTS)
        thresholds = self.select_thresholds(figures)
        missed = tuple(_describe_missed(figures, thresholds))
        if figures.kind == "exact":
            return OutputVerdict(figures, "failed" if missed else "passed", ", ".join(missed))
        if figures.kind == "float" and (overflow := self._describe_overflow(figures)) is not None:
            return OutputVerdict(figures, "failed", overflow, self.numbers.overflow or self.numbers.far or None)
        if not figures.largest and figures.max_abs and thresholds.max_abs is None and self.bound is None:
            missed = (f"every expected value is zero, but the EP returned values up to {figures.max_abs:.3g}",)
        if missed and (too_small := self._explain_too_small(figures)) is not None:
            return OutputVerdict(figures, "unjudgeable", too_small, OTHER_INPUTS)
        if missed:
            hint = self.numbers.far_quantized if self.quantized or figures.kind == "steps" else self.numbers.far
            return OutputVerdict(figures, "failed", ", ".join(missed), hint or None, self._is_met_by_zeros(figures))
        if (no_proof := self._explain_no_proof(figures, thresholds)) is not None:
            return OutputVerdict(
                figures, "unjudgeable", no_proof, f"{OTHER_INPUTS} Or set `max_abs`, which can judge such an output."
            )
        return OutputVerdict(figures, "passed")

    def _is_met_by_zeros(self, figures: Figures) -> bool:
        """Return whether the user's tolerance is at least as large as every expected value, so that the output's own scale must decide."""
        bound = self.user_thresholds.max_abs if self.bound is None else self.bound
        return figures.kind != "exact" and bound is not None and figures.largest <= bound

    def _describe_overflow(self, figures: Figures) -> str | None:
        """Return a sentence about numbers that overflowed, or None if there are none."""
        limit = self.numbers.largest
        if figures.lost:
            count = f"{figures.lost:,} of {figures.elements:,} values are NaN or infinite"
            return f"{count}; the largest expected value is {figures.largest:.6g}"
        if limit is None or figures.largest > limit / 2:
            return None
        times = round(figures.largest_got / limit)
        if not 1 <= times <= _MAX_MULTIPLE or abs(figures.largest_got - times * limit) > _AT_LIMIT * times * limit:
            return None
        multiple = f"{times} times {limit:.6g}, the largest value" if times > 1 else "the largest value"
        return (
            f"values overflow: the EP returned {figures.largest_got:.6g}, which is {multiple} of its precision; the largest "
            f"expected value is {figures.largest:.6g}"
        )

    def _explain_too_small(self, figures: Figures) -> str | None:
        """Return the reason why an output is too small to judge, or None.

        An output is too small if all its expected and actual numbers are below the EP's precision.
        """
        smallest = self.numbers.smallest
        if max(figures.largest, figures.largest_got) >= smallest:
            return None
        largest = f"the largest expected value is {figures.largest:.3g}"
        return f"all of its values are below {smallest:g}, where the EP has almost no precision left ({largest})"

    def _explain_no_proof(self, figures: Figures, thresholds: Thresholds) -> str | None:
        """Return the reason why a match proves nothing about an output, or None if the match is valid evidence."""
        if self.user_thresholds.max_abs is not None or self.bound is not None:
            return None
        if figures.constant or not figures.largest:
            number = "zero" if figures.largest == 0 else f"{figures.largest:.6g}"
            return f"all expected values are the same ({number}), so a match proves nothing"
        metrics = [name for name in METRICS if getattr(thresholds, name) is not None]
        if all(getattr(figures, name) is None for name in metrics) and figures.max_abs != 0:
            return f"none of the requested metrics is defined for it: {', '.join(metrics)}"
        return None


def decide_outcome(verdicts: Sequence[OutputVerdict]) -> Outcome:
    """Return the outcome of a model: failed if an output fails, passed if all outputs pass, or else unjudgeable."""
    outcomes = {verdict.outcome for verdict in verdicts}
    return "failed" if "failed" in outcomes else "passed" if outcomes == {"passed"} else "unjudgeable"


def list_hints(verdicts: Sequence[OutputVerdict]) -> str | None:
    """Return the hints for the outputs that decide the model's outcome, or None."""
    outcome = decide_outcome(verdicts)
    hints = dict.fromkeys(verdict.hint for verdict in verdicts if verdict.outcome == outcome and verdict.hint is not None)
    return " ".join(hints) or None


def format_output_figures(verdicts: Sequence[OutputVerdict]) -> str:
    """Format the figures and the reasons of outputs. The outputs that decide the outcome come first."""
    order: Mapping[Outcome, int] = {"failed": 0, "unjudgeable": 1, "passed": 2}

    def rank(verdict: OutputVerdict) -> tuple[int, float]:
        return order[verdict.outcome], rank_cosine(verdict.figures)

    ranked = sorted(verdicts, key=rank)
    texts = [
        f"{verdict.figures.output}: {verdict.reason}{'; ' if verdict.reason else ''}{format_figures(verdict.figures)}"
        for verdict in ranked[:_MAX_SHOWN]
    ]
    more = len(ranked) - _MAX_SHOWN
    return "; ".join(texts) + (f"; and {format_count(more, 'more output')}" if more > 0 else "")


def format_figures(figures: Figures) -> str:
    """Format the metrics of an output by their names in a recipe. Undefined metrics are omitted, except cosine and SNR."""
    if figures.kind == "exact":
        return f"top1 {figures.top1:.4g}" if figures.top1 is not None else "no elements"
    texts = {name: f"{name} {_format_metric(name, getattr(figures, name))}" for name in METRICS}
    if figures.max_abs == 0 and figures.largest:
        texts["snr_db"] = "snr_db infinite (nothing differs)"
    others = (name for name in ("max_abs", "max_rel", "top1") if getattr(figures, name) is not None)
    return ", ".join(texts[name] for name in ("cosine", "snr_db", *others))


def rank_cosine(metrics: Figures | Loss) -> float:
    """Return the cosine for sorting, the worst first. An undefined cosine comes last."""
    return 2.0 if metrics.cosine is None else metrics.cosine


def format_losses(losses: Losses) -> str:
    """Format the losses of the preparations and of the EP as a clause that says which loss is larger."""
    preparation, ep = losses.preparation.snr_db, losses.ep.snr_db
    parts = f"preparations alone: {_format_loss(losses.preparation)}; EP alone: {_format_loss(losses.ep)}"
    if preparation is None or ep is None:
        return parts
    return f"most of the difference comes from the {'preparations' if preparation < ep else 'EP'} ({parts})"


def _format_loss(loss: Loss) -> str:
    names = ("top1",) if loss.cosine is None and loss.top1 is not None else ("cosine", "snr_db")
    return ", ".join(f"{name} {_format_metric(name, getattr(loss, name))}" for name in names)


def _describe_missed(figures: Figures, thresholds: Thresholds) -> Iterator[str]:
    for name in METRICS:
        threshold, value = getattr(thresholds, name), getattr(figures, name)
        if threshold is None or value is None:
            continue
        if name in _UPPER_BOUNDS and value > threshold:
            yield f"{name} is {_format_metric(name, value)}, above the limit {threshold:g}"
        elif name not in _UPPER_BOUNDS and value < threshold:
            yield f"{name} is {_format_metric(name, value)}, below the limit {threshold:g}"


def _format_metric(name: str, value: float | None) -> str:
    if value is None:
        return "not defined"
    if name == "cosine":
        return f"{value:.6f}"
    return f"{value:.1f}" if name == "snr_db" else f"{value:.3g}"

"""Verdicts: the limits of acceptable numbers, and failures for outputs that prove nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from epbuild.catalog.catalog import entry
from epbuild.catalog.facts import Numbers, Thresholds
from epbuild.verify.live.metrics import Meter
from epbuild.verify.live.verdict import OutputVerdict, Rules, decide_outcome, format_output_figures

HTP = entry("QNNExecutionProvider").numbers
NOISE = np.random.default_rng(0).standard_normal(1000)
SIGNAL = np.random.default_rng(1).standard_normal(1000)


def judged(expected: Any, got: Any, numbers: Numbers = HTP, *, quantized: bool = False, **asked: float) -> OutputVerdict:
    meter = Meter("y")
    meter.add(np.asarray(expected), np.asarray(got))
    return Rules(numbers, quantized, Thresholds(**asked)).judge(meter.figures)


def test_thresholds_accept_real_errors_and_refuse_larger_errors() -> None:
    assert judged(SIGNAL, SIGNAL + 0.04 * NOISE).outcome == "passed"  # 28 dB
    far = judged(SIGNAL, SIGNAL + 0.2 * NOISE)
    assert far.outcome == "failed"
    assert far.reason.startswith("cosine is 0.98")
    assert ", below the limit 0.999" in far.reason


def test_a_quantized_model_has_wider_thresholds() -> None:
    near = SIGNAL + 0.1 * NOISE
    assert judged(SIGNAL, near, quantized=True).outcome == "passed"
    assert judged(SIGNAL, near).outcome == "failed"


def test_the_hint_about_half_precision_is_for_float_models_only() -> None:
    far = SIGNAL + 0.5 * NOISE
    assert "65504" in (judged(SIGNAL, far).hint or "")
    short = judged(np.array([9, 1], np.uint8), np.array([109, 1], np.uint8))
    wide = judged(np.array([900, 1], np.uint16), np.array([10_900, 1], np.uint16))
    for found in (judged(SIGNAL, far, quantized=True), short, wide):
        assert found.outcome == "failed"
        assert found.hint == HTP.far_quantized
        assert "65504" not in found.hint
        assert "quantized values" in found.hint


def test_one_outlier_is_found_despite_a_good_cosine() -> None:
    wild = SIGNAL.copy()
    wild[7] += 1.0
    found = judged(SIGNAL, wild)
    assert found.figures.cosine is not None
    assert found.figures.cosine > 0.999
    assert (found.outcome, found.reason.partition(" is ")[0]) == ("failed", "max_rel")


def test_only_requested_metrics_determine_the_verdict() -> None:
    rows, other = np.array([[0.1, 0.9], [0.9, 0.1]]), np.array([[0.4, 0.6], [0.6, 0.4]])
    assert judged(rows, other).outcome == "failed"
    assert judged(rows, other, top1=1.0).outcome == "passed"
    assert judged(rows, other[::-1], top1=0.98).reason == "top1 is 0, below the limit 0.98"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_reference_with_nan_or_infinity_never_passes(value: float) -> None:
    for got in (value, 1.0):
        found = judged([1.0, 2.0, value], [1.0, 2.0, got])
        assert (found.outcome, found.hint) == (
            "unjudgeable",
            "Provide representative inputs with --inputs, or with `data` in the recipe's `verify`.",
        )
        assert "the CPU EP itself returns NaN or infinity for 1 of 3 values" in found.reason


def test_outputs_of_nan_or_infinity_fail_and_are_counted() -> None:
    found = judged([1.0, 2.0, 3.0], [1.0, np.nan, np.inf])
    assert (found.outcome, found.reason) == (
        "failed",
        "2 of 3 values are NaN or infinite; the largest expected value is 3",
    )


@pytest.mark.parametrize(("got", "words"), [(-131008.0, "2 times 65504, the largest value"), (65504.0, "the largest value")])
def test_an_overflow_of_half_precision_has_a_hint_without_tolerances(got: float, words: str) -> None:
    found = judged([0.98, 0.01], [got, 0.01])
    assert found.outcome == "failed"
    assert f"{got if got > 0 else -got:.6g}, which is {words} of its precision" in found.reason
    assert found.hint == HTP.overflow
    assert "overflow" in found.hint
    assert "tol" not in found.hint


def test_large_expected_numbers_are_not_an_overflow() -> None:
    assert judged([65504.0, 1.0], [65504.0, 1.0]).outcome == "passed"
    assert judged(np.array([9, 1], np.uint16), np.array([65504, 1], np.uint16)).reason.startswith("max_abs is")


def test_an_output_below_the_eps_resolution_is_judged_by_its_own_scale() -> None:
    tiny = np.abs(SIGNAL) * 1e-5
    found = judged(tiny, tiny * 0 + 3e-5)
    assert found.outcome == "unjudgeable"
    assert "all of its values are below 0.001, where the EP has almost no precision left" in found.reason
    assert judged(tiny, np.zeros(1000)).outcome == "unjudgeable"
    assert judged(tiny, tiny * 1.001).outcome == "passed"
    assert judged(tiny, tiny + 0.5).outcome == "failed"


def test_a_bound_that_zeros_would_meet_does_not_make_numbers_pass() -> None:
    small = np.abs(SIGNAL) * 0.01
    found = judged(small, np.zeros(1000), max_abs=1.0)
    assert (found.outcome, found.own_scale) == ("failed", True)
    assert judged(small, small * 1.001, max_abs=1.0).outcome == "passed"
    assert judged(SIGNAL, SIGNAL + 0.2, max_abs=0.3).outcome == "passed"


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_constant_output_is_inconclusive_without_a_requested_bound(value: float) -> None:
    same = np.full(8, value)
    found = judged(same, same)
    assert found.outcome == "unjudgeable"
    assert found.reason.startswith("all expected values are the same (")
    assert judged(same, same, max_abs=0.1).outcome == "passed"
    assert judged(same, same + 0.3, max_abs=0.1).outcome == "failed"


def test_nonzero_values_for_expected_zeros_fail() -> None:
    found = judged([0.0, 0.0], [0.4446, 0.5518])
    assert (found.outcome, found.reason) == (
        "failed",
        "every expected value is zero, but the EP returned values up to 0.552",
    )


def test_a_single_number_is_judged_by_its_size() -> None:
    assert judged([[0.5622]], [[0.5591]]).outcome == "passed"
    assert judged([[0.5622]], [[0.3]]).outcome == "failed"
    assert judged([[0.5622]], [[0.5591]], cosine=0.99).outcome == "unjudgeable"


def test_indices_must_be_equal_and_quantized_values_within_two_steps() -> None:
    assert judged(np.array([3, 4]), np.array([3, 5])).reason == "top1 is 0.5, below the limit 1"
    assert judged(np.array([3, 4]), np.array([3, 5]), cosine=0.9).outcome == "failed"
    assert judged(np.array([3, 4]), np.array([3, 5]), top1=0.5).outcome == "passed"
    assert judged(np.array([3, 4]), np.array([3, 5]), max_abs=1).outcome == "passed"
    assert judged(np.array([3, 4]), np.array([3, 4])).outcome == "passed"
    assert judged(np.array([3, 250], np.uint8), np.array([5, 248], np.uint8)).outcome == "passed"
    assert judged(np.array([3, 250], np.uint8), np.array([6, 248], np.uint8)).outcome == "failed"


def test_an_ep_without_catalog_data_is_judged_by_default_thresholds() -> None:
    assert judged(SIGNAL, SIGNAL + 0.04 * NOISE, Numbers()).outcome == "passed"
    assert judged(SIGNAL * 1e-6, SIGNAL * 0, Numbers()).outcome == "failed"


def test_a_model_has_the_verdict_of_its_worst_output_listed_first() -> None:
    good, bad, none = judged(SIGNAL, SIGNAL * 1.01), judged(SIGNAL, -SIGNAL), judged([0.0, 0.0], [0.0, 0.0])
    assert decide_outcome([good, bad, none]) == "failed"
    assert decide_outcome([good, none]) == "unjudgeable"
    assert decide_outcome([good]) == "passed"
    assert decide_outcome([]) == "unjudgeable"
    text = format_output_figures([good, none, good, bad])
    assert text.startswith("y: cosine is -1.000000, below the limit 0.999")
    assert text.endswith("; and 1 more output")

"""Metrics: the definition of each, and no result from values that are not numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.plan.result import Figures
from epbuild.verify.live.metrics import DifferentOutput, Meter


def figures(*samples: tuple[Any, Any]) -> Figures:
    meter = Meter("y")
    for expected, got in samples:
        meter.add(np.asarray(expected), np.asarray(got))
    return meter.figures


def test_metrics_match_their_textbook_definitions() -> None:
    found = figures(([3.0, 4.0], [3.0, 3.0]))
    assert found.cosine == pytest.approx(21 / (5 * math.sqrt(18)))
    assert found.snr_db == pytest.approx(10 * math.log10(25 / 1))
    assert (found.max_abs, found.max_rel) == (1.0, 0.25)
    assert (found.largest, found.largest_got, found.elements, found.samples) == (4.0, 3.0, 2, 1)


def test_metrics_are_computed_over_all_samples() -> None:
    apart = figures(([3.0, 4.0], [3.0, 3.0]), ([[1.0], [2.0]], [[1.0], [2.5]]))
    assert apart.cosine == figures(([3.0, 4.0, 1.0, 2.0], [3.0, 3.0, 1.0, 2.5])).cosine
    assert (apart.samples, apart.elements) == (2, 4)


def test_top1_is_the_fraction_of_rows_with_the_correct_maximum() -> None:
    expected = [[0.1, 0.9], [0.8, 0.2], [0.5, 0.5], [0.0, 1.0]]
    got = [[0.2, 0.8], [0.1, 0.9], [0.1, 0.9], [np.nan, np.nan]]
    assert figures((expected, got)).top1 == 0.5
    assert figures((0.5, 0.5)).top1 is None
    assert figures(([[1.0], [2.0]], [[1.0], [2.0]])).top1 is None


def test_top1_of_index_outputs_is_the_fraction_of_equal_values() -> None:
    found = figures((np.array([1, 2, 3, 4]), np.array([1, 2, 3, 9])))
    assert (found.kind, found.top1, found.cosine) == ("exact", 0.75, None)
    assert figures((np.array(["a", "b"]), np.array(["a", "longer"]))).top1 == 0.5
    assert figures((np.array([True, False]), np.array([True, True]))).top1 == 0.5


def test_undefined_metrics_have_no_figure() -> None:
    zero = figures(([0.0, 0.0], [0.0, 1.0]))
    assert (zero.cosine, zero.snr_db, zero.max_rel, zero.max_abs, zero.constant) == (None, None, None, 1.0, True)
    one = figures(([2.0], [-2.0]))
    assert (one.cosine, one.constant) == (None, False)
    assert one.snr_db == pytest.approx(10 * math.log10(1 / 4))
    same = figures(([1.0, 2.0], [1.0, 2.0]))
    assert (same.snr_db, same.max_abs) == (None, 0.0)
    assert same.cosine == pytest.approx(1)
    empty = figures((np.zeros((0, 3)), np.zeros((0, 3))))
    assert (empty.elements, empty.cosine, empty.top1) == (0, None, None)


def test_nan_and_infinity_are_counted_and_produce_no_figures() -> None:
    lost = figures(([1.0, 2.0, 3.0], [1.0, np.nan, np.inf]))
    assert (lost.lost, lost.undefined, lost.cosine, lost.snr_db, lost.max_abs) == (2, 0, None, None, None)
    undefined = figures(([1.0, np.nan, -np.inf], [1.0, np.nan, 2.0]))
    assert (undefined.lost, undefined.undefined) == (0, 2)


def test_numbers_too_large_to_square_do_not_produce_a_good_figure() -> None:
    found = figures(([1e200, 2e200], [2e200, -1e200]))
    assert (found.cosine, found.snr_db) == (None, None)
    assert found.max_rel == pytest.approx(1.5)


def test_numbers_after_the_first_million_are_counted() -> None:
    source = np.random.default_rng(0)
    expected, got = source.standard_normal((2, 3, 500_000))
    found = figures((expected, got))
    product, error = np.vdot(expected, got), np.linalg.norm(expected - got)
    assert found.cosine == pytest.approx(product / np.linalg.norm(expected) / np.linalg.norm(got))
    assert found.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(expected) / error))
    assert found.max_abs == np.abs(expected - got).max()


def test_half_precision_and_quantized_outputs_are_summed_without_overflow() -> None:
    half = figures((np.full(4, 60000, np.float16), np.full(4, 60000, np.float16)))
    assert half.cosine == pytest.approx(1)
    steps = figures((np.array([250, 3], np.uint8), np.array([3, 250], np.uint8)))
    assert (steps.kind, steps.bits, steps.max_abs) == ("steps", 8, 247.0)


def test_outputs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(DifferentOutput, match=r"the shape of the output 'y' is \(3,\), but should be \(2,\)"):
        figures(([1.0, 2.0], [1.0, 2.0, 3.0]))


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=8))
def test_any_figures_survive_a_round_trip_through_json(pairs: list[tuple[float, float]]) -> None:
    found = figures(([pair[0] for pair in pairs], [pair[1] for pair in pairs]))
    text = json.dumps(msgspec.to_builtins(found), allow_nan=False)
    assert msgspec.convert(json.loads(text), Figures) == found
    assert found.cosine is None or -1 <= found.cosine <= 1

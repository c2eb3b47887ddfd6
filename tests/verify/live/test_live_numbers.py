"""Tolerances: the definition of near enough, and the name of each element outside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.verify.live.metrics import DifferentOutput, Tolerance, Worst, find_worst_element, get_default_tolerance


def worst(expected: Any, got: Any, atol: float = 0.0, rtol: float = 0.0) -> Worst:
    found = find_worst_element("y", np.asarray(expected), np.asarray(got), Tolerance(atol, rtol))
    assert found is not None
    return found


def test_the_worst_element_is_named_with_its_expected_value() -> None:
    found = worst([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.25], [3.5, 4.0]], atol=0.1)
    assert found.outside
    assert (found.index, found.outside, found.elements) == ((1, 0), 2, 4)
    assert str(found) == "y[1, 0]: expected 3, got 3.5; the difference is 0.5, and 0.1 is allowed"


def test_the_tolerance_grows_with_the_range_of_an_output_even_near_zero() -> None:
    assert not worst([0.0, 100.0], [0.4, 100.0], rtol=0.005).outside
    assert worst([0.0, 10.0], [0.4, 10.0], rtol=0.005).outside


def test_nan_and_infinity_are_never_close_to_a_number() -> None:
    assert worst([1.0, 2.0], [1.0, np.nan], atol=1e9).outside
    assert worst([1.0, np.nan], [1.0, 2.0], atol=1e9).outside
    assert worst([1.0, 2.0], [1.0, np.inf], atol=1e9).outside
    assert worst([1.0, np.inf], [1.0, -np.inf], atol=1e9, rtol=1.0).outside
    assert str(worst([1.0, 2.0], [1.0, np.nan])) == "y[1]: expected 2, got nan"


def test_an_infinite_tolerance_still_rejects_nan() -> None:
    assert worst([1.0], [np.nan], atol=np.inf).outside
    assert worst([1.0], [2.0], atol=np.nan).outside
    assert not worst([1.0], [2.0], atol=np.inf).outside


def test_integers_beyond_float_precision_are_distinguished() -> None:
    assert worst(np.array([2**53], np.int64), np.array([2**53 + 1], np.int64)).outside
    assert worst(np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64)).outside


def test_expected_nan_and_infinity_match() -> None:
    assert not worst([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf]).outside


@pytest.mark.parametrize(
    ("expected", "got", "within"),
    [
        (np.array([3, 250], np.uint8), np.array([5, 248], np.uint8), True),
        (np.array([3, 250], np.uint8), np.array([0, 250], np.uint8), False),
        (np.array([-128], np.int8), np.array([127], np.int8), False),
        (np.array([7], np.int64), np.array([8], np.int64), False),
        (np.array([True]), np.array([False]), False),
        (np.array(["a"]), np.array(["longer"]), False),
        (np.array(["a", "bc"]), np.array(["a", "bc"]), True),
        (np.array([0.5], np.float16), np.array([0.504], np.float16), True),
        (np.array([0.5]), np.array([0.52]), False),
    ],
)
def test_each_type_has_its_own_tolerance(expected: Any, got: Any, within: bool) -> None:
    found = find_worst_element("y", expected, got, get_default_tolerance(expected.dtype, quantized=False))
    assert found is not None
    assert (found.outside == 0) == within


def test_quantized_sources_have_a_larger_tolerance() -> None:
    plain, quantized = (get_default_tolerance(np.dtype(np.float32), quantized=quantized) for quantized in (False, True))
    assert plain.atol < quantized.atol
    assert plain.rtol < quantized.rtol


def test_an_output_with_another_shape_or_type_is_refused() -> None:
    with pytest.raises(DifferentOutput, match=r"the shape of the output 'y' is \(3,\), but should be \(2,\)"):
        worst([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(DifferentOutput, match="the type of the output 'y' is int64, but should be float64"):
        worst([1.0], [1])


def test_an_empty_output_has_no_worst_element() -> None:
    assert find_worst_element("y", np.zeros((0, 3)), np.zeros((0, 3)), Tolerance(0, 0)) is None


def test_a_scalar_has_no_index() -> None:
    assert str(worst(1.5, 2.5)) == "y: expected 1.5, got 2.5; the difference is 1, and 0 is allowed"


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_equal_values_pass_and_passing_values_are_within_tolerance(expected: list[float], got: list[float]) -> None:
    assert not worst(expected, expected).outside
    size = min(len(expected), len(got))
    found = worst(expected[:size], got[:size], atol=0.5)
    near = [
        a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 0.5 for a, b in zip(expected[:size], got[:size], strict=True)
    ]
    assert (found.outside == 0) == all(near)
    assert found.outside == near.count(False)

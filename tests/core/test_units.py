"""Sizes and durations: exact values, or messages that list the valid units."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.units import SIZES, TIMES, format_estimate, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("8 GB", 8 * 10**9), ("8GiB", 8 * 2**30), ("1.5 KiB", 1536), ("0.3 B", 0), ("20GB", 2 * 10**10)],
)
def test_size_is_parsed_as_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2592000), ("1.5h", 5400), ("90 s", 90), ("2w", 1209600), ("0s", 0)])
def test_time_is_parsed_as_seconds(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "GB", "8 gb", "8  GB", "-1 GB", "1e3 B", "1,5 GB", "8 GB ", "٣ GB", "1d"])
def test_invalid_size_is_refused_with_the_valid_units(text: str) -> None:
    with pytest.raises(ValueError, match="one of the units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"):
        parse_bytes(text)


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    for read, units in ((parse_bytes, SIZES), (parse_seconds, TIMES)):
        is_amount = any(re.fullmatch(rf"[0-9]{{1,15}}(\.[0-9]{{1,15}})? ?{unit}", text, re.ASCII) for unit in units)
        if is_amount:
            assert read(text) >= 0
        else:
            with pytest.raises(ValueError, match="Write a number and one of the units"):
                read(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (59.6, "60 s"),
        (99, "99 s"),
        (125, "2 min"),
        (5_900, "98 min"),
        (6_100, "1 h 40 min"),
        (7_200, "2 h"),
        (90_000, "25 h"),
    ],
)
def test_estimate_is_rounded_to_its_precision(seconds: float, text: str) -> None:
    assert format_estimate(seconds) == text

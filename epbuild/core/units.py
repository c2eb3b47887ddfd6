"""Parsing and formatting of amounts such as `8 GB`, `30d` and `2 files`."""

from __future__ import annotations

import re

SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]+)")


def parse_bytes(text: str) -> int:
    """Parse a size, such as `8 GB`, to a number of bytes. Raises ValueError with a hint as its message."""
    return _parse_amount(text, SIZES)


def parse_seconds(text: str) -> int:
    """Parse a duration, such as `30d`, to a number of seconds. Raises ValueError with a hint as its message."""
    return _parse_amount(text, TIMES)


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def format_estimate(seconds: float) -> str:
    """Format an estimated duration with its largest units: `40 s`, `3 min`, `2 h 10 min`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(round(minutes / 10) * 10, 60)
    return f"{hours} h" + (f" {rest} min" if rest else "")


def _parse_amount(text: str, units: dict[str, int]) -> int:
    amount = _AMOUNT.fullmatch(text)
    if amount is None or amount[2] not in units:
        raise ValueError(f"Write a number and one of the units: {', '.join(units)}.")
    from fractions import Fraction  # imported here because few commands need it

    return int(Fraction(amount[1]) * units[amount[2]])

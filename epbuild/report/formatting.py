"""Texts of sizes, differences, times and long lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def format_size(size: int) -> str:
    """Return a number of bytes with a decimal unit."""
    from rich.filesize import decimal

    return decimal(size)


def format_size_change(size: int) -> str:
    """Return a difference of bytes with its sign."""
    return f"{'-' if size < 0 else '+'}{format_size(abs(size))}"


def format_percent(part: int, whole: int) -> str:
    """Return a difference in percent with its sign, from 1000 % on as a factor, or nothing if the whole is 0."""
    if not whole:
        return ""
    value = 100 * part / whole
    return f"{value:+,.1f}%" if value < 1000 else f"{1 + value / 100:,.0f}x"


def shorten_list(items: Sequence[str], max_items: int, more: str = "and {} more") -> list[str]:
    """Return the first items, and the number of the others."""
    return [*items[:max_items], *([more.format(len(items) - max_items)] if len(items) > max_items else [])]


def format_local_time(moment: str) -> str:
    """Return an RFC 3339 time in the local time zone, or other text unchanged."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return moment

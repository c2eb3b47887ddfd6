"""Amounts in words: bytes, their differences, and lists that are cut off."""

from __future__ import annotations

from collections.abc import Sequence


def amount(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def signed(size: int) -> str:
    """A difference of bytes in words."""
    return f"{'-' if size < 0 else '+'}{amount(abs(size))}"


def percent(part: int, whole: int) -> str:
    """A difference as a part of something, with its sign, or how many times as much it is; nothing where the something is nothing."""
    if not whole:
        return ""
    value = 100 * part / whole
    return f"{value:+,.1f}%" if value < 1000 else f"{1 + value / 100:,.0f}x"


def limited(items: Sequence[str], most: int, more: str = "and {} more") -> list[str]:
    """The first `most` of the items, and how many more there are."""
    return [*items[:most], *([more.format(len(items) - most)] if len(items) > most else [])]

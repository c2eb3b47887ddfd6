"""Amounts of bytes, and their differences, in words."""

from __future__ import annotations


def amount(size: int) -> str:
    """Bytes in words."""
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

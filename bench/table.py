"""Text form of a result, at most 80 columns wide."""

from __future__ import annotations

import textwrap

from results import Result, Series, Unit

WIDTH = 80
_DECIMALS: dict[Unit, int] = {"s": 3, "MB": 1, "x": 3}
_WHAT = 30
_ROW = f"  {{what:<{_WHAT}}} {{median:>9}}  {{span:>15}}  {{limit:>9}}  {{verdict}}"


def render(name: str, result: Result) -> str:
    """Return the question, a line for each measurement, and the notes."""
    return "\n".join((
        textwrap.fill(f"{name}: {result.question}", WIDTH),
        _ROW.format(what="", median="median", span="min - max", limit="limit", verdict="verdict"),
        *(line for series in result.series for line in _lines(series)),
        textwrap.fill(result.notes, WIDTH, initial_indent="  ", subsequent_indent="  "),
    ))  # fmt: skip


def _lines(series: Series) -> list[str]:
    *before, last = textwrap.wrap(series.what, _WHAT)
    row = _ROW.format(
        what=last,
        median=f"{_number(series.median, series.unit)} {series.unit}",
        span=f"{_number(min(series.samples), series.unit)} - {_number(max(series.samples), series.unit)}",
        limit="-" if series.limit is None else f"{_number(series.limit, series.unit)} {series.unit}",
        verdict="" if series.limit is None else "pass" if series.kept else "FAIL",
    )
    return [*(f"  {line}" for line in before), row.rstrip()]


def _number(value: float, unit: Unit) -> str:
    return f"{value:.{_DECIMALS[unit]}f}"

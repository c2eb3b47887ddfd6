"""Figures of measured models on the terminal.

On the device 'SM-S918B'           load       p50       p95     first      memory
vision/phone/classifier          250 ms   4.12 ms    5.5 ms     12 ms    181.2 MB
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epbuild.commands.reporting.recipe_values import ReportedMeasurement
from epbuild.report.formatting import Table, format_size
from epbuild.verify.figures import describe_place

_COLUMNS = {
    "load_ms": "load",
    "latency_ms.p50": "p50",
    "latency_ms.p95": "p95",
    "latency_ms.first": "first",
    "peak_memory": "memory",
}
"""Headings of columns, by the names of figures."""
_WIDTHS = (10, 10, 10, 10, 12)
_NONE = "The selected steps measured nothing."
_LEGEND = "! above the limit of the recipe"


def format_measurements(rows: Sequence[ReportedMeasurement]) -> Iterator[str]:
    """Yield a table with a heading for each place, because figures of different places cannot be compared."""
    places: dict[str, list[ReportedMeasurement]] = {}
    for row in rows:
        places.setdefault(describe_place(row.on, row.device), []).append(row)
    for place, found in places.items():
        cells = tuple(_format_cells(row) for row in found)
        yield from Table("Measured", (place[0].upper() + place[1:], *_COLUMNS.values()), cells).text(_WIDTHS)
    if any(_is_above_limit(row, name) for row in rows for name in _COLUMNS):
        yield _LEGEND
    if not rows:
        yield _NONE


def _format_cells(row: ReportedMeasurement) -> tuple[str, ...]:
    figures = (_format_figure(name, row.figures.get(name)) + ("!" if _is_above_limit(row, name) else "") for name in _COLUMNS)
    return (f"{row.group}/{row.target}/{row.member}", *figures)


def _format_figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "peak_memory":
        return format_size(int(value))
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _is_above_limit(row: ReportedMeasurement, name: str) -> bool:
    return name in row.limits and name in row.figures and row.figures[name] > row.limits[name]

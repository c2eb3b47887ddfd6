"""Reader of measurements and of limits on measured figures."""

from __future__ import annotations

from typing import Any, Final

from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import MeasureChoice, Setting
from epbuild.recipe.nodes import ScalarNode

LATER: Final = {"command": ("in", "out", "facts", "model")}
"""Names in the templates of a command that the planner substitutes."""
LATENCIES: Final = ("first", "p50", "p95")
"""Latencies of a model: the first run, the median, and the 95th percentile."""
FIGURES: Final = ("load_ms", *(f"latency_ms.{name}" for name in LATENCIES), "peak_memory")
"""Names of the figures of a measurement."""


def read_measure(owner: MappingReader) -> MeasureChoice | None:
    """Read the key `measure` of a target or a group. Return None if the key is absent."""
    if "measure" not in owner.entries:
        return None
    fields = owner.mapping("measure")
    on: Any = fields.text("on")
    words = (item for item in fields.items("command") if isinstance(item, ScalarNode))
    return MeasureChoice(
        where=fields.where,
        command=tuple(Setting(word.value, word.where, word.where) for word in words if word.value is not None),
        files=fields.paths("files"),
        environment=fields.settings("environment"),
        timeout=fields.number("timeout"),
        on=on or "device",
        runs=fields.integer("runs") or MeasureChoice._field_defaults["runs"],
    )


def read_figure_limits(expect: MappingReader) -> tuple[tuple[str, float], ...]:
    """Read the limits on measured figures in `expect`. A single number of `latency_ms` limits the median."""
    latency = expect.expand_shorthand(expect.entries["latency_ms"].node, "p50") if "latency_ms" in expect.entries else None
    read = {
        "load_ms": expect.number("load_ms"),
        **{f"latency_ms.{name}": latency.number(name) for name in LATENCIES if latency is not None},
        "peak_memory": expect.size("peak_memory"),
    }
    return tuple((name, limit) for name, limit in read.items() if limit is not None)

"""The benchmarks by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from results import Result
from workshop import Workshop

from benchmarks import cold_64mb, large_recipe, memory, nothing_to_do, startup

BENCHMARKS: dict[str, Callable[[Workshop, int], Result]] = {
    "cold-64mb": cold_64mb.measure,
    "large-recipe": large_recipe.measure,
    "memory": memory.measure,
    "nothing-to-do": nothing_to_do.measure,
    "startup": startup.measure,
}

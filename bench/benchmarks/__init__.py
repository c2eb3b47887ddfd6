"""Benchmarks by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from results import Result
from workshop import Workshop

from benchmarks import (
    changes,
    cluster,
    cold_build,
    command_line,
    emitting,
    hashing,
    large_model,
    large_recipe,
    many_models,
    many_steps,
    memory,
    nothing_to_do,
    remote_cache,
    report_page,
    restoring,
    startup,
)

BENCHMARKS: dict[str, Callable[[Workshop, int], Result]] = {
    "changes-1000": partial(changes.measure, steps=1_000),
    "changes-10000": partial(changes.measure, steps=10_000),
    "changes-100000": partial(changes.measure, steps=100_000),
    "cluster": cluster.measure,
    "cold-64mb": partial(cold_build.measure, megabytes=64),
    "cold-512mb": partial(cold_build.measure, megabytes=512),
    "cold-parallel": cold_build.measure_parallel,
    "command-line": command_line.measure,
    "emitting-archive": emitting.measure_archive,
    "emitting-directory": emitting.measure_directory,
    "hashing": hashing.measure,
    "large-model": large_model.measure,
    "large-recipe": large_recipe.measure,
    "many-models": many_models.measure,
    "memory": memory.measure,
    "nothing-to-do": nothing_to_do.measure,
    "nothing-to-do-1000": partial(many_steps.measure, steps=1_000),
    "nothing-to-do-10000": partial(many_steps.measure, steps=10_000),
    "remote-cache": remote_cache.measure,
    "report-page": report_page.measure,
    "restoring": restoring.measure,
    "startup": startup.measure,
}

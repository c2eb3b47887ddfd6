"""Benchmark of the time that commands take to start, and of commands that only read."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from project import quickstart
from results import Result
from rounds import Contender, interleave
from workshop import Workshop

LIMIT = 0.25


def measure(workshop: Workshop, rounds: int) -> Result:
    recipe = quickstart(workshop)
    looking = {
        "epbuild validate": workshop.epbuild("validate", recipe),
        "epbuild plan": workshop.epbuild("plan", recipe),
    }
    starting = {
        "epbuild --version": workshop.epbuild("--version"),
        **{f"epbuild {name} --help": workshop.epbuild(name, "--help") for name in _names(workshop)},
    }
    series = interleave(
        [Contender(what, partial(workshop.seconds, command)) for what, command in (looking | starting).items()],
        rounds,
    )
    return Result(
        "How long do read-only commands take, and how long does each command take to start?",
        tuple(replace(one, limit=LIMIT) if one.what in looking else one for one in series),
        "The recipe is recipes/quickstart.yaml: 3 models for 2 SoCs, never built and without a toolchain.",
    )


def _names(workshop: Workshop) -> list[str]:
    """Return the name of every command, as epbuild's help lists them."""
    found: list[str] = []

    def note(text: str) -> bool:
        found.extend(re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE))
        return bool(found)

    workshop.seconds(workshop.epbuild("--help"), said=note)
    return found

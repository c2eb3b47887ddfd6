"""Benchmark of a build in which every step is current, the most frequent case."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial

from project import quickstart
from results import Result
from rounds import Contender, interleave
from workshop import SETTLED_SECONDS, Workshop

LIMIT = 0.4


def measure(workshop: Workshop, rounds: int) -> Result:
    recipe = quickstart(workshop)
    workshop.seconds(workshop.epbuild("run", recipe))
    time.sleep(SETTLED_SECONDS)
    workshop.seconds(workshop.epbuild("run", recipe))
    workshop.seconds(workshop.epbuild("run", recipe, "--check"))
    commands = {
        "epbuild run": workshop.epbuild("run", recipe),
        'python -c "import typer, yaml"': [sys.executable, "-c", "import typer, yaml"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    run, *floor = interleave([Contender(what, partial(workshop.seconds, command)) for what, command in commands.items()], rounds)
    return Result(
        "How long does `epbuild run` take if nothing has changed?",
        (replace(run, limit=LIMIT), *floor),
        "The recipe is recipes/quickstart.yaml: 3 models for 2 SoCs, already built. The other rows show the start of Python, "
        "with and without the two packages that every recipe needs.",
    )

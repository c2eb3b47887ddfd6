"""How long a person waits for the commands that only look."""

from __future__ import annotations

from functools import partial

from project import quickstart
from results import Result
from rounds import Contender, interleave
from workshop import Workshop


def measure(workshop: Workshop, rounds: int) -> Result:
    recipe = quickstart(workshop)
    commands = {
        "epbuild --version": workshop.epbuild("--version"),
        "epbuild validate": workshop.epbuild("validate", recipe),
        "epbuild plan": workshop.epbuild("plan", recipe),
    }
    series = interleave([Contender(what, partial(workshop.seconds, command)) for what, command in commands.items()], rounds)
    return Result(
        "How long do the commands take that only look?",
        tuple(series),
        "The recipe is recipes/quickstart.yaml: 3 models for 2 SoCs, never built, and with no toolchain yet.",
    )

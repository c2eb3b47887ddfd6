"""Benchmark of the peak memory of the epbuild process, which must not depend on the size of models."""

from __future__ import annotations

import sys
from dataclasses import replace

from project import PACKAGES, Project
from results import Result
from rounds import Contender, interleave
from workshop import SCRIPTS, Unable, Workshop

ALLOWANCE_MB = 8.0
_LAYERS = 4
_BIG, _SMALL = 2048, 256  # sides of the weights: 64 MB and 1 MB in four layers


def measure(workshop: Workshop, rounds: int) -> Result:
    if sys.platform == "win32":
        raise Unable("this benchmark needs getrusage, which Windows does not have")
    workshop.provision(PACKAGES)

    def contender(weights: str, side: int) -> Contender:
        project = Project(workshop, weights.replace(" ", "-"), layers=_LAYERS, side=side)
        answer = project.folder / "peak"

        def peak() -> float:
            project.reset()
            workshop.seconds([sys.executable, SCRIPTS / "peak_memory.py", answer, "run", project.recipe])
            return int(answer.read_text(encoding="utf-8")) / 1e6

        return Contender(f"epbuild run, {weights} of weights", peak)

    big, small = interleave([contender("64 MB", _BIG), contender("1 MB", _SMALL)], rounds, "MB")
    return Result(
        "What is the peak memory of epbuild itself, without the compiler?",
        (replace(big, limit=small.median + ALLOWANCE_MB), small),
        f"The limit is {ALLOWANCE_MB:.0f} MB more than for the small model: memory must not grow with the size of the models. "
        "The compiler runs in a separate process, which is not measured.",
    )

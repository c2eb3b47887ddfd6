"""Benchmark of thousands of steps that are current, against other tools with the same steps and files."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

from graphs import contenders
from many import Many
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import Workshop

TIMES_NINJA = 2.5
LIMIT = 0.030
_LIMITED_BY_TIME = 1000
_FASTER = frozenset({"ninja", "make"})
"""Tools written in C or C++, which may be faster. epbuild has to be faster than all others."""


def measure(workshop: Workshop, rounds: int, *, steps: int) -> Result:
    # With ten times as many steps, DVC takes minutes.
    names = ("ninja", "make", "doit", "scons", *(["dvc"] if steps <= _LIMITED_BY_TIME else []))
    many = Many(workshop, steps)
    peers = Peers(workshop, *names)
    run, *others = interleave(
        [
            Contender("epbuild run", partial(workshop.seconds, workshop.epbuild("run", many.recipe))),
            *contenders(names, workshop, peers, many.folder, many.steps),
            Contender("python -I -S -c pass", partial(workshop.seconds, [sys.executable, "-I", "-S", "-c", "pass"])),
        ],
        rounds,
    )
    workshop.seconds(workshop.epbuild("run", many.recipe, "--check"))
    medians = {series.what: series.median for series in others}
    slower = [medians[name] for name in names if name in medians and name not in _FASTER]
    own = LIMIT if steps <= _LIMITED_BY_TIME else TIMES_NINJA * medians["ninja"]
    return Result(
        f"How long does it take to detect that nothing has changed, for {steps} steps and {many.files} files?",
        (replace(run, limit=min(own, *slower)), *others),
        f"{_compared(run, others)} Each tool checks the same files: the inputs and outputs of every step. The project has "
        f"{many.groups} groups of {many.members} models that share weights, built by a stand-in for ONNX Runtime that only "
        "writes small EPContext models, since the benchmark does not measure EPs. epbuild also checks the toolchain, and "
        f"compares contents if times have changed. ninja, make and doit do not read outputs. {peers.notes()}",
    )


def _compared(run: Series, others: list[Series]) -> str:
    return "epbuild takes " + ", ".join(f"{run.median / other.median:.2g} x {other.what}" for other in others[:-1]) + "."

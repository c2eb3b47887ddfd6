"""Benchmark of the library that parses the command line. Only the fast path does not load it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from results import Result
from rounds import Contender, interleave
from workshop import SCRIPTS, Workshop

OURS = "typer==0.28.0"
_OTHERS = {"click==8.5.1": "click", "typer==0.26.0": "typer", "typer==0.29.0": "typer"}
MAX_OVER_CLICK = 0.05
"""Limit of typer's time beyond click's, in seconds."""


def measure(workshop: Workshop, rounds: int) -> Result:
    contenders = []
    for package, library in {OURS: "typer", **_OTHERS}.items():
        interpreter = workshop.provision([package])
        command: list[str | Path] = [interpreter, SCRIPTS / "command_line.py", library, "epbuild.yaml", "--check"]
        contenders.append(Contender(f"a command with {package}", partial(workshop.seconds, command)))
    ours, click, *others = interleave(contenders, rounds)
    return Result(
        "How much time does the command line library add to each command?",
        (replace(ours, limit=click.median + MAX_OVER_CLICK), click, *others),
        "A command with one argument and three options that does nothing, in an environment with only the library. From 0.29 "
        "on, typer imports pydantic if a command has a parameter.",
    )

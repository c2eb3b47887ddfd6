"""One event of each kind, and streams that stand in for a terminal or a pipe, for these tests."""

from __future__ import annotations

import io

from epbuild.build import (
    Event,
    Fetched,
    Fetching,
    OutputRemoved,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainReady,
    ToolchainStarted,
    Warned,
)
from epbuild.errors import Position, Problem

COMPILE = "compile:decoder/snapdragon-SC8380XP/prefill"
EMIT = "emit:decoder/snapdragon-SC8380XP/directory"
ADDRESS = "hf://acme/x@main/x.onnx"
WHERE = Position("epbuild.yaml", 12, 5)

FAILURE = Problem("EPB401", "compiling 'prefill' failed. The EP said: → [bold]no[/]", COMPILE, "The whole log: x.log.")
WARNING = Problem("EPB233", "the model 'x' shares nothing", WHERE)

EVENTS: tuple[Event, ...] = (
    Warned(WARNING),
    Fetching("x", ADDRESS, 400_000, 1_600_000),
    Fetched("x"),
    ToolchainStarted("qnn", "making an environment with onnxruntime-qnn==2.7.0"),
    ToolchainReady("qnn", "1.31.1", 12.34567),
    RunStarted("quickstart", 4, 3),
    StepStarted(COMPILE, "compiling for snapdragon-SC8380XP"),
    StepOutput(COMPILE, "Processing graph → 50%"),
    StepFinished(COMPILE, "built", 7.25, "1 EPContext node", 268_700_000),
    StepFinished(EMIT, "current", 0.0),
    StepFailed(COMPILE, (FAILURE,)),
    OutputRemoved(EMIT, "dist/old", 3, ("dist/old/mine.bin",), ("dist/old/notes.txt",)),
    RunFinished(1, 20.0, 1, 0, 1, 1, 0),
)


class Terminal(io.StringIO):
    """Text that is written to what calls itself a terminal."""

    def isatty(self) -> bool:
        return True

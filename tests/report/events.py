"""One event of each kind, and streams that stand in for a terminal or a pipe."""

from __future__ import annotations

import io

from epbuild.core.errors import Position, Problem, StepId
from epbuild.diff.byte_differences import DifferingBytes, FileDifference
from epbuild.engine.events import (
    Completion,
    DiskNeeded,
    Event,
    RunFinished,
    RunStarted,
    StepAdvanced,
    StepFailed,
    StepFinished,
    StepOutput,
    StepsCurrent,
    StepStarted,
    Warned,
)
from epbuild.plan.result import FallbackNode
from epbuild.publish.sizes import ChangedFile, OutputCompared, SharingSaved
from epbuild.session.events import (
    ComparisonFinished,
    ComparisonStarted,
    Fetched,
    Fetching,
    FilesChanged,
    Hashed,
    Hashing,
    ModelCovered,
    Noted,
    OutputRemoved,
    RemoteCacheUsed,
    ResultsShared,
    StepCompared,
    ToolchainFailed,
    ToolchainInstalling,
    ToolchainLocked,
    ToolchainReady,
    ToolchainStarted,
    Watching,
)
from epbuild.verify.fallback import FallbackNodes

COMPILE = "compile:decoder/snapdragon-SC8380XP/prefill"
SHARE = "share:decoder/snapdragon-SC8380XP"
EMIT = "emit:decoder/snapdragon-SC8380XP/directory"
ODD = 'emit:"→\\/directory'
ADDRESS = "hf://acme/x@main/x.onnx"
WHERE = Position("epbuild.yaml", 12, 5)

FAILURE = Problem(
    "EPB401",
    "compiling 'prefill' failed. The EP logged: → [bold]no[/]",
    StepId(COMPILE),
    "See the whole log: x.log.",
    "→ [bold]no[/]",
)
WARNING = Problem("EPB233", "the model 'x' shares nothing", WHERE)
ANOTHER = Problem("EPB650", "made again, x_qnn.bin is not the same", StepId(COMPILE), "Both are kept.")
STAMPS = DifferingBytes("timestamp", "member metadata", 233_880, 6, 6, "2026-11-22 00:11:01 UTC", "2026-11-22 00:11:05 UTC")
REBUILT = FileDifference("x_qnn.bin", 246_216, 246_216, 233_880, 6, (STAMPS,))

OUTSIDE = FallbackNodes("prefill", 2, (FallbackNode("/Gather", "Gather", "Cannot get shape"), FallbackNode("", "If", None)))

EVENTS: tuple[Event, ...] = (
    Warned(WARNING),
    Fetching("x", ADDRESS, 400_000, 1_600_000, 9.0),
    Fetched("x"),
    ToolchainStarted("qnn", "creating an environment with onnxruntime-qnn==2.7.0"),
    ToolchainReady("qnn", "1.31.1", 12.34567),
    RunStarted("quickstart", 4, 3, 90.0),
    StepStarted(COMPILE, "compiling for snapdragon-SC8380XP"),
    StepOutput(COMPILE, "Processing graph → 50%"),
    StepOutput(COMPILE, "Unable to get producer node", status=False),
    StepFinished(COMPILE, "built", 7.25, "1 EPContext node", 268_700_000, Completion(1, 3, 80.0)),
    StepFinished(EMIT, "current", 0.0),
    StepFailed(COMPILE, (FAILURE,), Completion(2, 3, 0.0)),
    OutputRemoved(EMIT, "dist/old", 3, ("dist/old/mine.bin",), ("dist/old/notes.txt",)),
    OutputCompared(EMIT, "dist/new", 100, 130, (ChangedFile("a.bin", 100, 120), ChangedFile("b.bin", None, 10))),
    SharingSaved(SHARE, 200, 120, measured=True, made=120),
    ModelCovered(COMPILE, "prefill", "snapdragon-SC8380XP", "partial", 2, OUTSIDE, None, 268_700_000, 7.25, {"cosine": 0.99997}),
    ComparisonStarted(2),
    StepCompared(SHARE, "same", 2.5, 3, 752_200, progress=Completion(1, 2)),
    StepCompared(
        COMPILE,
        "different",
        1.25,
        2,
        246_300,
        (REBUILT,),
        kept=".epbuild/rebuilt/x",
        problems=(ANOTHER,),
        progress=Completion(2, 2, 0.0),
    ),
    ComparisonFinished(2.75, 1, 0, 1, 0, 0),
    ToolchainLocked("qnn", ("linux-x86_64", "windows-arm64"), 10, 2.5),
    ResultsShared("https://cache.example/x", 1, 2, 1_200_000_000, 3_200_000_000, 8.0),
    RemoteCacheUsed("https://cache.example/x", 50, 46, 1, 1_200_000_000, 2, 300_000, 14.25),
    ToolchainInstalling("qnn", "fetching onnxruntime-qnn", 8_400_000, 142_000_000),
    ToolchainFailed("qnn"),
    Noted("reading 1.2 GB"),
    Hashing(1_200_000_000, 3_200_000_000, 8.0, "decoder.onnx.data"),
    Hashed(3_200_000_000, 12.34567),
    StepAdvanced(COMPILE, "storing decoder.bin", 1_200_000_000, 4_300_000_000, 14.0),
    DiskNeeded("/home/user/.cache/epbuild", 12_900_000_000, 75_100_000_000),
    Watching(3),
    FilesChanged(("model.onnx",)),
    StepsCurrent((EMIT, ODD)),
    RunFinished(1, 20.0, 1, 0, 1, 1, 0),
)


class Terminal(io.StringIO):
    """Text stream that reports itself as a terminal."""

    def isatty(self) -> bool:
        return True

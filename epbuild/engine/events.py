"""What a build says while it goes on: frozen values, rendered elsewhere. The engine never prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from epbuild.core.errors import Problem

if TYPE_CHECKING:
    from epbuild.diff.bytes_differ import FileDifference
    from epbuild.verify.fallback import Outside

Outcome = Literal["built", "restored", "current", "emitted", "failed", "skipped", "allowed"]
Coverage = Literal["whole", "partial", "failed"]
"""The EPs of a target took all of a model, some of its nodes, or none."""
Verdict = Literal["same", "known", "different"]
"""What was made again is the same to the byte; or differs in nothing but what its target is known for; or differs otherwise."""


@dataclass(frozen=True)
class Progress:
    """How far a build is: `done` of `total` steps that are to do have ended."""

    done: int
    total: int
    seconds_left: float | None = None
    """What the rest is likely to take, by what was measured; None as long as nothing was."""


@dataclass(frozen=True)
class RunStarted:
    """The plan is made and compared with what is there: `todo` of `steps` steps are out of date."""

    recipe: str
    steps: int
    todo: int
    seconds_left: float | None = None
    """What they are likely to take, by what was measured; None if nothing was."""
    keep_going: bool = False
    """Whether a failure stops nothing but what depends on it."""


@dataclass(frozen=True)
class ToolchainStarted:
    """An environment is being made, or looked at, which can take a while."""

    toolchain: str
    text: str


@dataclass(frozen=True)
class ToolchainReady:
    """An environment can be used."""

    toolchain: str
    onnxruntime: str
    seconds: float


@dataclass(frozen=True)
class ToolchainLocked:
    """What to lock of a toolchain is known: so many packages for each of these platforms."""

    toolchain: str
    platforms: tuple[str, ...]
    packages: int
    seconds: float


@dataclass(frozen=True)
class Fetching:
    """A file of a remote model is arriving: `done` bytes are here, of `total` if that is known."""

    model: str
    address: str
    done: int
    total: int | None


@dataclass(frozen=True)
class Fetched:
    """A remote model is here."""

    model: str


@dataclass(frozen=True)
class StepStarted:
    """Work on a step begins; `doing` says what, in a few words."""

    step: str
    doing: str


@dataclass(frozen=True)
class StepOutput:
    """A line that the EP, or whatever else works on the step, has said."""

    step: str
    text: str
    status: bool = True
    """Whether it tells what is being done; what an EP says beside that is for logs."""


@dataclass(frozen=True)
class StepFinished:
    """A step came to its end; `note` has what is worth telling of its result, `size` the bytes that it wrote."""

    step: str
    outcome: Outcome
    seconds: float
    note: str = ""
    size: int | None = None
    progress: Progress | None = None
    """How far the build is with it; None for a step that was not to do."""


@dataclass(frozen=True)
class StepFailed:
    """A step failed, for these reasons."""

    step: str
    problems: tuple[Problem, ...]
    progress: Progress | None = None
    allowed: bool = False
    """Whether the recipe allows it, so that the build goes on and counts as a success."""
    remembered: bool = False
    """Whether it failed before, and was not tried again, as nothing that it depends on has changed."""


@dataclass(frozen=True)
class OutputRemoved:
    """An output that the recipe no longer asks for is gone, so many `files` of it; what is not as epbuild wrote it was kept."""

    step: str
    directory: str
    files: int
    changed: tuple[str, ...] = ()
    """Kept, since somebody has changed them."""
    foreign: tuple[str, ...] = ()
    """Kept, since epbuild did not make them."""
    size: int = 0
    """The bytes that went."""


@dataclass(frozen=True)
class ChangedFile:
    """A file of an output that has other bytes than before: its size then (None: it is new) and now (None: it is gone)."""

    path: str
    before: int | None
    after: int | None


@dataclass(frozen=True)
class OutputCompared:
    """An output was laid out: its bytes before (None: it is the first) and now, less its manifest, and which of its files changed."""

    step: str
    directory: str
    before: int | None
    after: int
    files: tuple[ChangedFile, ...]


@dataclass(frozen=True)
class SharingSaved:
    """What a sharing group's bytes come to without sharing, and with it.

    `measured`: those of its binaries and data, each member compiled alone. Otherwise those of its sources' weights, equal contents once.
    """

    step: str
    unshared: int
    shared: int
    measured: bool


@dataclass(frozen=True)
class ModelCovered:
    """How far the EPs of a target took a model, once the build is done."""

    step: str
    model: str
    """The model's name, after its group's where several groups have one of that name for the target."""
    target: str
    outcome: Coverage
    ep_context_nodes: int | None = None
    outside: Outside | None = None
    """The nodes that stayed outside; None where nothing was compiled."""
    reason: str | None = None
    """Why nothing was compiled."""
    size: int | None = None
    """The bytes of all that it takes to run the model; a context binary that models share counts for each of them."""
    seconds: float | None = None
    """What the compile took, whenever that was."""
    accuracy: Mapping[str, float] | None = None
    """Figures of how near its numbers are to those of its source; None where nobody looked."""


@dataclass(frozen=True)
class ComparisonStarted:
    """The build is done, and so many session `groups` are made again, to be compared."""

    groups: int
    seconds_left: float | None = None
    """What that is likely to take, by what was measured."""


@dataclass(frozen=True)
class StepCompared:
    """A session group was made again; `step` is its last step, `files` and `size` are of what was made before."""

    step: str
    verdict: Verdict
    seconds: float
    files: int
    size: int
    differences: tuple[FileDifference, ...] = ()
    known: str | None = None
    """Why the target is known to differ, where it is, whether it did or not."""
    kept: str | None = None
    """The folder that has both, where they differ."""
    problems: tuple[Problem, ...] = ()
    """A problem for each file that differs and is not known to."""
    progress: Progress | None = None
    """How far the comparisons are with it."""


@dataclass(frozen=True)
class ComparisonFinished:
    """All is compared; the counts are of session groups."""

    seconds: float
    same: int
    known: int
    different: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class Warned:
    """Something that is not wrong, but is not likely to be meant."""

    problem: Problem


@dataclass(frozen=True)
class RunFinished:
    """The build is over; the counts are of steps."""

    exit_code: int
    seconds: float
    built: int
    restored: int
    current: int
    failed: int
    """Those whose failure is not allowed."""
    skipped: int
    allowed: int = 0
    """Those that failed and are allowed to."""


Event = (
    RunStarted
    | ToolchainStarted
    | ToolchainReady
    | ToolchainLocked
    | Fetching
    | Fetched
    | StepStarted
    | StepOutput
    | StepFinished
    | StepFailed
    | OutputRemoved
    | OutputCompared
    | SharingSaved
    | ModelCovered
    | ComparisonStarted
    | StepCompared
    | ComparisonFinished
    | Warned
    | RunFinished
)
Listener = Callable[[Event], None]
"""Takes events from any thread, one at a time."""


def shown_path(path: Path) -> str:
    """A path as short as it can be told: relative to the current directory when it is below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)

"""Events of commands: notes, toolchains, fetched models, coverage, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from epbuild.core.errors import Problem
from epbuild.core.values import dataclass
from epbuild.engine.events import Completion, Event, Progress

if TYPE_CHECKING:
    from epbuild.diff.bytes_differ import FileDifference
    from epbuild.verify.fallback import Outside

Coverage = Literal["whole", "partial", "failed", "not built"]
"""The EPs of a target took all of a model, some of its nodes, or none; or nobody has tried."""
Comparison = Literal["same", "known", "different"]
"""What was made again is the same to the byte; or differs in nothing but what its target is known for; or differs otherwise."""


@dataclass(frozen=True)
class Noted(Event):
    """A line about what takes long."""

    text: str


@dataclass(frozen=True)
class Watching(Event):
    """A build is over, and so many `files` are watched for a change that is worth another one."""

    files: int


@dataclass(frozen=True)
class FilesChanged(Event):
    """Another build begins, as these files have changed."""

    files: tuple[str, ...]


@dataclass(frozen=True)
class NotedLines:
    """`ProgressLines` that are events."""

    progress: Progress

    def report(self, text: str, /) -> None:
        """Report a line."""
        self.progress.report(Noted(text))


@dataclass(frozen=True)
class ToolchainStarted(Event):
    """An environment is being made, or looked at, which can take a while."""

    toolchain: str
    text: str


@dataclass(frozen=True)
class ToolchainInstalling(Event):
    """What the installer of an environment does; `done` bytes are here, of the `total` that is known so far."""

    toolchain: str
    text: str
    done: int
    total: int


@dataclass(frozen=True)
class ToolchainReady(Event):
    """An environment can be used."""

    toolchain: str
    onnxruntime: str
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class ToolchainFailed(Event):
    """An environment could not be made; why is in what failed for it."""

    toolchain: str


@dataclass(frozen=True)
class ToolchainLocked(Event):
    """What to lock of a toolchain is known: so many packages for each of these platforms."""

    toolchain: str
    platforms: tuple[str, ...]
    packages: int
    seconds: float


@dataclass(frozen=True)
class Fetching(Event):
    """A file of a remote model is arriving: `done` bytes are here, of `total` if that is known."""

    model: str
    address: str
    done: int
    total: int | None


@dataclass(frozen=True)
class Fetched(Event):
    """A remote model is here."""

    model: str


@dataclass(frozen=True)
class ResultsShared(Event):
    """The build is done, and waits for results to be written to the `remote` cache: `done` of `total` are."""

    remote: str
    done: int
    total: int


@dataclass(frozen=True)
class RemoteCacheUsed(Event):
    """What a build had of its `remote` cache, in results and bytes; `seconds` are those in which at least one request was under way."""

    remote: str
    asked: int
    """The results that it answered for."""
    found: int
    unusable: int
    received_bytes: int
    published: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True)
class OutputRemoved(Event):
    """An output that the recipe no longer asks for is gone, so many `files` of it; what is not as epbuild wrote it was kept."""

    step: str
    directory: str
    files: int
    changed: tuple[str, ...] = ()
    """Kept, since they were changed."""
    foreign: tuple[str, ...] = ()
    """Kept, since epbuild did not make them."""
    size: int = 0
    """The bytes that went."""


@dataclass(frozen=True)
class ModelCovered(Event):
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
class ComparisonStarted(Event):
    """The build is done, and so many session `groups` are made again, to be compared."""

    groups: int
    seconds_left: float | None = None
    """What that is likely to take, by what was measured."""


@dataclass(frozen=True)
class StepCompared(Event):
    """A session group was made again; `step` is its last step, `files` and `size` are of what was made before."""

    step: str
    verdict: Comparison
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
    progress: Completion | None = None
    """How far the comparisons are with it."""


@dataclass(frozen=True)
class ComparisonFinished(Event):
    """All is compared; the counts are of session groups."""

    seconds: float
    same: int
    known: int
    different: int
    failed: int
    skipped: int

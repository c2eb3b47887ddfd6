"""Events of a build, and receivers of events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.byte_progress import ByteProgress, count_bytes
from epbuild.core.digest import Count
from epbuild.core.errors import Problem

Outcome = Literal["built", "restored", "current", "emitted", "failed", "skipped", "allowed"]

Origin = Literal["remote"]
"""Source of a result that was neither produced on this machine nor found in the store: the remote cache."""


class Event(Struct, frozen=True):
    """Base class of a build's events, which are frozen values with plain fields.

    Other packages of epbuild define subclasses beside the code that reports the events.
    """


class Progress(Protocol):
    """Receiver of events. `report` may be called from any thread, but not by two threads at the same time."""

    def report(self, event: Event, /) -> None:
        """Receive an event."""


class Completion(Struct, frozen=True):
    """Progress of a build: `done` of `total` out-of-date steps have ended."""

    done: int
    """Number of out-of-date steps that have ended."""
    total: int
    """Number of out-of-date steps."""
    seconds_left: float | None = None
    """Estimated seconds for the remaining steps, from measured times; None if no time has been measured yet."""


class RunStarted(Event, frozen=True):
    """The plan has been made and compared with the workspace: `todo` of `steps` steps are out of date."""

    recipe: str
    """Name of the recipe."""
    steps: int
    """Number of steps."""
    todo: int
    """Number of steps that are out of date."""
    seconds_left: float | None = None
    """Estimated seconds for the out-of-date steps, from measured times; None if no time has been measured."""
    keep_going: bool = False
    """True if a failure stops only the steps that depend on it."""


class DiskNeeded(Event, frozen=True):
    """The build writes more than a tenth of the free space of a file system."""

    folder: str
    """Folder on the file system: the store, the recipe's folder, or the folder of an output."""
    size: int
    """Bytes that the build writes, estimated from earlier results and from the sizes of the sources."""
    free: int
    """Free bytes."""


class StepStarted(Event, frozen=True):
    """Work on a step started."""

    step: str
    """Id of the step."""
    doing: str
    """Description of the work, in a few words."""


class StepOutput(Event, frozen=True):
    """Line of output of an EP or another program that works on a step."""

    step: str
    """Id of the step."""
    text: str
    """The line."""
    status: bool = True
    """True if the line reports progress. False for other output of an EP, which appears only in logs."""


class StepAdvanced(Event, frozen=True):
    """A step has processed `done` of `total` bytes of its files."""

    step: str
    """Id of the step."""
    doing: str
    """Description of the work, such as `storing decoder.bin`."""
    done: int
    """Bytes that have been processed."""
    total: int
    """Total number of bytes."""
    seconds_left: float
    """Expected time left; 0 once all bytes have been processed."""


class StepFinished(Event, frozen=True):
    """A step ended."""

    step: str
    """Id of the step."""
    outcome: Outcome
    """Outcome."""
    seconds: float
    """Duration."""
    note: str = ""
    """Remarks on the result."""
    size: int | None = None
    """Bytes that the step wrote; null if unknown."""
    progress: Completion | None = None
    """Progress of the build, including this step; None for a current step."""
    from_: Origin | None = None
    """Source of a restored result; None for the store."""
    machine: str | None = None
    """Machine that produced or provided the result; None for this machine."""
    memory: int | None = None
    """Peak memory in bytes of the process that produced the result in this build. Set only on an action's last step, if known."""


class StepsCurrent(Event, frozen=True):
    """Many steps are current. This event replaces one `StepFinished` for each step, because there may be thousands of steps.

    Only subclasses of `BatchProgress` receive it.
    """

    steps: tuple[str, ...]

    @property
    def each(self) -> Iterator[StepFinished]:
        """`StepFinished` events that this event replaces."""
        return (StepFinished(step, "current", 0.0) for step in self.steps)


class StepFailed(Event, frozen=True):
    """A step failed because of `problems`."""

    step: str
    """Id of the step."""
    problems: tuple[Problem, ...]
    """Errors."""
    progress: Completion | None = None
    """Progress of the build, including this step."""
    allowed: bool = False
    """True if the recipe allows the failure, so that the build continues and may succeed."""
    remembered: bool = False
    """True if the step failed in an earlier build and was not retried, because no input has changed."""
    seconds: float = 0.0
    """Duration; 0 if the step was not run."""
    file: str | None = None
    """File of the recipe that defines the step's group, model or output."""
    line: int | None = None
    """Line of this definition in `file`, from 1."""


class Warned(Event, frozen=True):
    """A warning: a problem that does not stop the build."""

    problem: Problem
    """The warning."""


class RunFinished(Event, frozen=True):
    """The build ended. `built`, `restored`, `current`, `failed`, `skipped` and `allowed` are numbers of steps."""

    exit_code: int
    """Exit code."""
    seconds: float
    """Duration of the build."""
    built: int
    """Steps that were built."""
    restored: int
    """Steps whose results were restored."""
    current: int
    """Steps that were current."""
    failed: int
    """Failed steps whose failure is not allowed."""
    skipped: int
    """Steps that were skipped because another step failed."""
    allowed: int = 0
    """Failed steps whose failure is allowed."""


class BatchProgress:
    """Base class of receivers that accept `StepsCurrent`. All other receivers get one `StepFinished` for each step instead."""


def forward_one_by_one(progress: Progress) -> Progress:
    """Return a receiver that accepts all events and forwards them to `progress`, even if `progress` is not a `BatchProgress`."""
    return progress if isinstance(progress, BatchProgress) else _OneByOne(progress)


class _OneByOne(BatchProgress):
    """Adapter for a receiver that does not accept `StepsCurrent`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def report(self, event: Event, /) -> None:
        """Forward an event. Forward `StepsCurrent` as the events that it replaces."""
        if isinstance(event, StepsCurrent):
            for finished in event.each:
                self._progress.report(finished)
        else:
            self._progress.report(event)


class NoProgress(BatchProgress):
    """`Progress` that drops all events."""

    def report(self, event: Event, /) -> None:
        """Drop an event."""


class EventList(list[Event]):
    """`Progress` that stores all events in order."""

    def report(self, event: Event, /) -> None:
        """Append an event."""
        self.append(event)


class Serialized:
    """Thread-safe `Progress` that forwards events to another receiver, one at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def report(self, event: Event, /) -> None:
        """Forward an event after all earlier events."""
        with self._lock:
            self._progress.report(event)


class OutputOf(Struct, frozen=True):
    """`Progress` that forwards the output of all steps as output of `step`, and drops all other events."""

    progress: Progress
    step: str
    prefix: str = ""

    def report(self, event: Event, /) -> None:
        """Forward an event if it is output."""
        if isinstance(event, StepOutput):
            self.progress.report(replace(event, step=self.step, text=f"{self.prefix}{event.text}"))


@contextmanager
def count_step_bytes(progress: Progress, step: str, doing: str, total: int) -> Iterator[Count]:
    """Yield a callback for the size of each piece that a step has processed. Report the progress as `StepAdvanced` events."""

    def report(found: ByteProgress) -> None:
        progress.report(StepAdvanced(step, doing, found.done, total, found.seconds_left))

    with count_bytes(total, report) as count:
        yield count

"""Events of a build, and the protocol of their receivers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import Problem

Outcome = Literal["built", "restored", "current", "emitted", "failed", "skipped", "allowed"]

Origin = Literal["remote"]
"""Source of a result that was neither produced here nor in the store: the remote cache."""


class Event(Struct, frozen=True):
    """Event of a build: a frozen value of plain fields. A domain defines its events as subclasses beside the code that reports them."""


class Progress(Protocol):
    """Receiver of events, from any thread, one event at a time."""

    def report(self, event: Event, /) -> None:
        """Receive an event."""


class Completion(Struct, frozen=True):
    """Progress of a build: `done` of `total` out-of-date steps have ended."""

    done: int
    """Number of out-of-date steps that have ended."""
    total: int
    """Number of out-of-date steps."""
    seconds_left: float | None = None
    """Estimate for the rest, from measured times; None if no time has been measured yet."""


class RunStarted(Event, frozen=True):
    """The plan is complete and compared with the workspace: `todo` of `steps` steps are out of date."""

    recipe: str
    """Name of the recipe."""
    steps: int
    """Number of steps."""
    todo: int
    """Number of steps that are out of date."""
    seconds_left: float | None = None
    """Estimated seconds for the missing steps, from measured times; None if no time has been measured."""
    keep_going: bool = False
    """True if a failure stops only the steps that depend on it."""


class StepStarted(Event, frozen=True):
    """Work on a step begins; `doing` describes the work in a few words."""

    step: str
    """Id of the step."""
    doing: str
    """Work that begins, in a few words."""


class StepOutput(Event, frozen=True):
    """Line of output of an EP or another program that works on a step."""

    step: str
    """Id of the step."""
    text: str
    """The line."""
    status: bool = True
    """True if the line reports progress. Other output of an EP is for logs only."""


class StepFinished(Event, frozen=True):
    """A step ended. `note` has remarks on the result. `size` is the number of bytes written."""

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
    """Progress of the build with this step; None for a current step."""
    from_: Origin | None = None
    """Source of a restored result; None for the store."""
    machine: str | None = None
    """Machine that produced or had the result; None for this one."""
    memory: int | None = None
    """Peak memory of the process that produced the result in this build, in bytes. Set on the last step of an action, if known."""


class StepsCurrent(Event, frozen=True):
    """Many current steps at once: there may be thousands. It replaces a `StepFinished` for each, and only `TakesMany` receives it."""

    steps: tuple[str, ...]

    @property
    def each(self) -> Iterator[StepFinished]:
        """Events that it replaces."""
        return (StepFinished(step, "current", 0.0) for step in self.steps)


class StepFailed(Event, frozen=True):
    """A step failed because of `problems`."""

    step: str
    """Id of the step."""
    problems: tuple[Problem, ...]
    """Errors."""
    progress: Completion | None = None
    """Progress of the build with this step."""
    allowed: bool = False
    """True if the recipe allows the failure, so that the build goes on and counts as a success."""
    remembered: bool = False
    """True if the step failed in an earlier build and was not tried again, because no input has changed."""


class Warned(Event, frozen=True):
    """A warning: a problem that does not stop the build."""

    problem: Problem
    """The warning."""


class RunFinished(Event, frozen=True):
    """The build ended. The counts are of steps."""

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


class TakesMany:
    """Base of a `Progress` that receives `StepsCurrent`. Any other receives a `StepFinished` for each step instead."""


def forward_one_by_one(progress: Progress) -> Progress:
    """Return a `Progress` that receives all events and forwards them to `progress`, which may be no `TakesMany`."""
    return progress if isinstance(progress, TakesMany) else _OneByOne(progress)


class _OneByOne(TakesMany):
    """Adapter for a `Progress` that does not receive `StepsCurrent`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def report(self, event: Event, /) -> None:
        """Forward an event, or the events that it replaces."""
        if isinstance(event, StepsCurrent):
            for finished in event.each:
                self._progress.report(finished)
        else:
            self._progress.report(event)


class NoProgress(TakesMany):
    """`Progress` that drops all events."""

    def report(self, event: Event, /) -> None:
        """Drop an event."""


class EventList(list[Event]):
    """`Progress` that keeps all events, in their order."""

    def report(self, event: Event, /) -> None:
        """Append an event."""
        self.append(event)


class Serialised:
    """`Progress` for any thread, in front of one that receives one event at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def report(self, event: Event, /) -> None:
        """Forward an event, after those before it."""
        with self._lock:
            self._progress.report(event)


class OutputOf(Struct, frozen=True):
    """`Progress` that forwards the output of any step as output of one `step`, and drops all other events."""

    progress: Progress
    step: str
    prefix: str = ""

    def report(self, event: Event, /) -> None:
        """Forward an event if it is output."""
        if isinstance(event, StepOutput):
            self.progress.report(replace(event, step=self.step, text=f"{self.prefix}{event.text}"))

"""Events of a build, and the protocol of what takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.errors import Problem

Outcome = Literal["built", "restored", "current", "emitted", "failed", "skipped", "allowed"]

Origin = Literal["remote"]
"""Where a result comes from that was neither made nor here: the remote cache."""


class Event(Struct, frozen=True):
    """What happened in a build: a frozen value of plain fields. Events of a domain are subclasses beside what raises them."""


class Progress(Protocol):
    """Takes what happens while work goes on; from any thread, one event at a time."""

    def report(self, event: Event, /) -> None:
        """Take note of an event, or show it."""


class Completion(Struct, frozen=True):
    """How far a build is: `done` of `total` steps that are to do have ended."""

    done: int
    total: int
    seconds_left: float | None = None
    """What the rest is likely to take, by what was measured; None as long as nothing was."""


class RunStarted(Event, frozen=True):
    """The plan is made and compared with what is there: `todo` of `steps` steps are out of date."""

    recipe: str
    steps: int
    todo: int
    seconds_left: float | None = None
    """What they are likely to take, by what was measured; None if nothing was."""
    keep_going: bool = False
    """Whether a failure stops nothing but what depends on it."""


class StepStarted(Event, frozen=True):
    """Work on a step begins; `doing` is what, in a few words."""

    step: str
    doing: str


class StepOutput(Event, frozen=True):
    """A line that the EP, or whatever else works on the step, has logged."""

    step: str
    text: str
    status: bool = True
    """Whether it is about what is being done; what else an EP writes is for logs."""


class StepFinished(Event, frozen=True):
    """A step came to its end; `note` has what is worth knowing of its result, `size` the bytes that it wrote."""

    step: str
    outcome: Outcome
    seconds: float
    note: str = ""
    size: int | None = None
    progress: Completion | None = None
    """How far the build is with it; None for a step that was not to do."""
    from_: Origin | None = None
    """Where a result that was restored has come from; None: from the store."""
    machine: str | None = None
    """The machine that made it, or had it; None: this one."""
    memory: int | None = None
    """The peak memory of what made it in this build, on the last step of its action, in bytes; None where that is not known."""


class StepsCurrent(Event, frozen=True):
    """Steps that were not to do, all at once, as there may be thousands: it stands for a `StepFinished` of each.

    Only what `TakesMany` is given it.
    """

    steps: tuple[str, ...]

    @property
    def each(self) -> Iterator[StepFinished]:
        """What it stands for."""
        return (StepFinished(step, "current", 0.0) for step in self.steps)


class StepFailed(Event, frozen=True):
    """A step failed, for these reasons."""

    step: str
    problems: tuple[Problem, ...]
    progress: Completion | None = None
    allowed: bool = False
    """Whether the recipe allows it, so that the build goes on and counts as a success."""
    remembered: bool = False
    """Whether it failed before, and was not tried again, as nothing that it depends on has changed."""


class Warned(Event, frozen=True):
    """Something that is not wrong, but is not likely to be meant."""

    problem: Problem


class RunFinished(Event, frozen=True):
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


class TakesMany:
    """The base of a `Progress` that takes `StepsCurrent`; any other gets a `StepFinished` for each of the steps."""


def one_by_one(progress: Progress) -> Progress:
    """A `Progress` that takes all events for one that may not: itself, if it does."""
    return progress if isinstance(progress, TakesMany) else _OneByOne(progress)


class _OneByOne(TakesMany):
    """A `Progress` in front of one that takes the end of each step by itself."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def report(self, event: Event, /) -> None:
        """Pass an event on, or what it stands for."""
        if isinstance(event, StepsCurrent):
            for finished in event.each:
                self._progress.report(finished)
        else:
            self._progress.report(event)


class NoProgress(TakesMany):
    """A `Progress` that is not shown."""

    def report(self, event: Event, /) -> None:
        """Drop an event."""


class EventList(list[Event]):
    """A `Progress` that keeps all events, in their order."""

    def report(self, event: Event, /) -> None:
        """Keep an event."""
        self.append(event)


class Serialised:
    """A `Progress` for any thread, in front of one that takes one event at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def report(self, event: Event, /) -> None:
        """Pass an event on, once those before it are dealt with."""
        with self._lock:
            self._progress.report(event)


class OutputOf(Struct, frozen=True):
    """A `Progress` that passes on what steps put out, as output of one `step`, and drops all other events."""

    progress: Progress
    step: str
    prefix: str = ""

    def report(self, event: Event, /) -> None:
        """Pass an event on if it is output."""
        if isinstance(event, StepOutput):
            self.progress.report(replace(event, step=self.step, text=f"{self.prefix}{event.text}"))

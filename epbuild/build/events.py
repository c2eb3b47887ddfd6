"""What a build says while it goes on: frozen values, rendered elsewhere. The engine never prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epbuild.errors import Problem

Outcome = Literal["built", "restored", "current", "emitted", "failed", "skipped"]


@dataclass(frozen=True)
class RunStarted:
    """The plan is made and compared with what is there: `todo` of `steps` steps are out of date."""

    recipe: str
    steps: int
    todo: int


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


@dataclass(frozen=True)
class StepFinished:
    """A step came to its end; `note` has what is worth telling of its result, `size` the bytes that it wrote."""

    step: str
    outcome: Outcome
    seconds: float
    note: str = ""
    size: int | None = None


@dataclass(frozen=True)
class StepFailed:
    """A step failed, for these reasons."""

    step: str
    problems: tuple[Problem, ...]


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
    skipped: int


Event = (
    RunStarted
    | ToolchainStarted
    | ToolchainReady
    | Fetching
    | Fetched
    | StepStarted
    | StepOutput
    | StepFinished
    | StepFailed
    | OutputRemoved
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

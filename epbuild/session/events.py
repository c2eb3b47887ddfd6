"""Events of commands: notes, toolchains, fetched models, coverage, comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from epbuild.core.byte_progress import ByteProgress, count_bytes
from epbuild.core.digest import Count
from epbuild.core.errors import Problem
from epbuild.core.shown import ProgressLines
from epbuild.engine.events import Completion, Event, Progress

if TYPE_CHECKING:
    from epbuild.diff.byte_differences import FileDifference
    from epbuild.verify.fallback import FallbackNodes

Coverage = Literal["whole", "partial", "on the CPU", "failed verify", "failed measure", "failed", "not built"]
"""`whole` and `partial`: the EPs of a target took all nodes of a model, or only some. `failed`: the model could not be compiled,
or does not meet `expect`.

`failed verify` and `failed measure`: the model was compiled, but its `verify` or `measure` step failed. `not built`: the model was
never compiled.
"""
Comparison = Literal["same", "known", "different"]
"""Outcome of a comparison: equal bytes, only known differences of the target, or other differences."""


class Noted(Event, frozen=True):
    """Note about a slow operation."""

    text: str
    """The note."""


class Watching(Event, frozen=True):
    """The build has ended, and epbuild watches `files` files for changes."""

    files: int
    """Number of files."""


class FilesChanged(Event, frozen=True):
    """Another build starts because `files` have changed."""

    files: tuple[str, ...]
    """Paths of the files."""


def note_lines(progress: Progress) -> ProgressLines:
    """Return a function that reports each of its lines as a `Noted` event."""
    return lambda text: progress.report(Noted(text))


class Hashing(Event, frozen=True):
    """Hashing takes longer than a second: `done` of `total` bytes have been hashed."""

    done: int
    """Bytes that have been hashed."""
    total: int
    """Total number of bytes to hash."""
    seconds_left: float
    """Expected time left."""
    files: str = "files"
    """Name of the file that has most of the bytes. If there is none, the number of files."""


class Hashed(Event, frozen=True):
    """Hashing that took longer than a second has ended."""

    total: int
    """Bytes that were hashed."""
    seconds: float
    """Duration."""


class HashingEvents(Struct, frozen=True):
    """Source of events about hashing that takes longer than a second."""

    progress: Progress
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def counting(self, total: int, files: str) -> Iterator[Count]:
        """Yield a callback for the size of each hashed piece of `files`, which have `total` bytes. Report the progress."""

        def report(found: ByteProgress) -> None:
            if found.ended:
                self.progress.report(Hashed(found.done, found.seconds))
            else:
                self.progress.report(Hashing(found.done, total, found.seconds_left, files))

        with count_bytes(total, report, self.clock) as count:
            yield count


class ToolchainStarted(Event, frozen=True):
    """An environment is being provisioned or inspected."""

    toolchain: str
    """Name of the toolchain."""
    text: str
    """Short description of the work that begins."""


class ToolchainInstalling(Event, frozen=True):
    """The installer of an environment has received `done` of `total` known bytes."""

    toolchain: str
    """Name of the toolchain."""
    text: str
    """Short description of the current work."""
    done: int
    """Bytes that were received."""
    total: int
    """Bytes to receive, as far as they are known."""


class ToolchainReady(Event, frozen=True):
    """An environment is ready."""

    toolchain: str
    """Name of the toolchain."""
    onnxruntime: str
    """Version of ONNX Runtime."""
    seconds: float
    """Duration."""
    note: str = ""
    """Remark for users. Empty if there is none."""


class ToolchainFailed(Event, frozen=True):
    """An environment could not be provisioned. The `step_failed` events contain the reason."""

    toolchain: str
    """Name of the toolchain."""


class ToolchainLocked(Event, frozen=True):
    """A toolchain was resolved for the lock. `packages` is the number of packages on the platform that has the most packages."""

    toolchain: str
    platforms: tuple[str, ...]
    packages: int
    seconds: float


class Fetching(Event, frozen=True):
    """A file of a remote model is being fetched: `done` of `total` bytes have been received."""

    model: str
    """Name of the model."""
    address: str
    """Address of the file."""
    done: int
    """Bytes that were received."""
    total: int | None
    """Bytes of the file; null if unknown."""
    seconds_left: float | None = None
    """Expected time left; null if unknown."""


class Fetched(Event, frozen=True):
    """A remote model has been fetched."""

    model: str
    """Name of the model."""


class ResultsShared(Event, frozen=True):
    """The build waits for uploads to the `remote` cache: `done` of `total` results have been uploaded."""

    remote: str
    """Address of the remote cache."""
    done: int
    """Number of results that were written."""
    total: int
    """Number of results to write."""
    done_bytes: int = 0
    """Bytes that were uploaded since the build began to wait, or that the cache had already."""
    total_bytes: int = 0
    """Bytes that were to be uploaded when the build began to wait."""
    seconds_left: float | None = None
    """Expected time left; null if unknown."""


class RemoteCacheUsed(Event, frozen=True):
    """Use of the `remote` cache by a build."""

    remote: str
    """Address of the remote cache."""
    asked: int
    """Results that were looked up."""
    found: int
    """Results that were found."""
    unusable: int
    """Results that could not be used."""
    received_bytes: int
    """Bytes that were downloaded."""
    published: int
    """Results that were uploaded."""
    sent_bytes: int
    """Bytes that were uploaded."""
    seconds: float
    """Time during which at least one request was active."""


class OutputRemoved(Event, frozen=True):
    """Files of an orphaned output were removed. Files that users added or changed were kept."""

    step: str
    """Id of the former emit step."""
    directory: str
    """Path of the output."""
    files: int
    """Number of files that were removed."""
    changed: tuple[str, ...] = ()
    """Files that were kept because they had changed."""
    foreign: tuple[str, ...] = ()
    """Files that were kept because epbuild had not written them."""
    size: int = 0
    """Bytes that were removed."""


class ModelCovered(Event, frozen=True):
    """Coverage of a model by the EPs of a target after a build."""

    step: str
    """Id of the compile or share step of the model."""
    model: str
    """Name of the model. The group's name precedes it if several groups have a model of this name for the target."""
    target: str
    """Name of the target."""
    outcome: Coverage
    """`whole` and `partial`: the EP took all nodes, or only some. `on the CPU`: the recipe has `compile: none` for the model.
    `failed`: the model could not be compiled, or does not meet `expect`. `failed verify` and `failed measure`: the model
    was compiled, but its `verify` or `measure` step failed. `not built`: the model was not compiled."""
    ep_context_nodes: int | None = None
    """Number of EPContext nodes; null if nothing was compiled."""
    outside: FallbackNodes | None = None
    """Fallback nodes; None if nothing was compiled."""
    reason: str | None = None
    """Reason why nothing was compiled, or why `verify` or `measure` failed."""
    size: int | None = None
    """Bytes of all files that the model needs. A shared context binary counts for each model."""
    seconds: float | None = None
    """Duration of the compile, which may have run in an earlier build."""
    accuracy: Mapping[str, float] | None = None
    """Accuracy metrics; None if accuracy was not measured."""
    verify: str | None = None
    """Id of the failed `verify` step, if any."""
    measure: str | None = None
    """Id of the failed `measure` step, if any."""


class ComparisonStarted(Event, frozen=True):
    """The build has ended. epbuild now rebuilds `groups` session groups for comparison."""

    groups: int
    """Number of session groups to rebuild."""
    seconds_left: float | None = None
    """Expected seconds, if known."""


class StepCompared(Event, frozen=True):
    """A session group was rebuilt and compared. `step` is its last step. `files` and `size` describe the stored result."""

    step: str
    """Id of the last step of the session group."""
    verdict: Comparison
    """`same`: equal bytes. `known`: only known differences of the target. `different`: other differences."""
    seconds: float
    """Duration of the rebuild."""
    files: int
    """Number of files."""
    size: int
    """Bytes of the stored result."""
    differences: tuple[FileDifference, ...] = ()
    """Files that differ."""
    known: str | None = None
    """Reason for the target's known differences, if any. It is set even if this result did not differ."""
    kept: str | None = None
    """Folder with the stored and the rebuilt files; null if they do not differ."""
    problems: tuple[Problem, ...] = ()
    """One problem for each file that differs unexpectedly."""
    progress: Completion | None = None
    """Progress of all comparisons."""


class ComparisonFinished(Event, frozen=True):
    """All session groups (pairs of a group and a target) have been compared. The keys count session groups."""

    seconds: float
    """Duration."""
    same: int
    """Session groups that are equal."""
    known: int
    """Session groups that have only known differences."""
    different: int
    """Session groups with other differences."""
    failed: int
    """Session groups whose rebuild failed."""
    skipped: int
    """Session groups that were not rebuilt."""

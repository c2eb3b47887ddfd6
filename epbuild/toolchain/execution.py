"""`Execution`: one run of an action, with its toolchain, folder, log and worker."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import Cancelled
from epbuild.core.digest import Blob, file_digest
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.core.safepath import real_path
from epbuild.engine.events import Progress, StepOutput
from epbuild.toolchain.diagnosis import readable, tells_progress
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.process import Ending, WorkerListener
from epbuild.toolchain.reports import BadReport

REQUEST = "request.json"
"""The file in the staging directory that a worker reads."""


class Worker(Struct, frozen=True):
    """A script for the toolchain's Python, what errors call its process, and what it runs under."""

    title: str
    script: Path
    timeout: float | None = None
    """Seconds; None: no limit."""
    environment: Mapping[str, str] = field(default_factory=dict)


class StepLog(WorkerListener):
    """Emits the lines of a worker's log as output of a step. What it reports is ignored here."""

    def __init__(self, step: str, progress: Progress) -> None:
        self.step = step
        self.progress = progress

    def logged(self, line: str) -> None:
        words = readable(line)
        if words:
            self.progress.report(StepOutput(self.step, words, status=tells_progress(line)))


class Kept(NamedTuple):
    """What the store has of an action that was done: its artifacts by name, and its log."""

    artifacts: Mapping[str, Blob]
    log: Blob


@dataclass(frozen=True)
class Execution:
    """Where an action runs, what with, and where its results and events go. This one watches no inputs and holds no place in a build."""

    environment: Environment
    staging: Path
    log: Path
    shown_log: str
    """The log's name in messages."""
    store: BlobStore
    progress: Progress
    cancelled: threading.Event

    def digests(self, files: Iterable[Path]) -> Mapping[Path, str]:
        """The SHA-256 of files, as they are now."""
        return {file: file_digest(file) for file in files}

    def recheck(self) -> None:
        """Raises an error if an input of the action is no longer what its key holds."""

    def compiled(self) -> None:
        """Take note that the worker has ended, and what is left is to read and write files."""

    def relinking(self, paths: Sequence[Path]) -> AbstractContextManager[None]:
        """Surrounds what makes or removes a link to files, so that this does not count as a change of them; the shorter, the better."""
        return nullcontext()

    def apart(self, staging: Path) -> Execution:
        """An execution in another directory, with its log beside that, which watches nothing."""
        log = staging.with_suffix(".log")
        return Execution(self.environment, staging, log, self.shown_log, self.store, self.progress, self.cancelled)

    def run(self, worker: Worker, step: StepId, log: StepLog) -> Ending:
        """Run a worker on `REQUEST` in the staging directory, which belongs to a step, until it ends.

        Raises EnvironmentFailure where it cannot be started, BuildError where it reports what no worker does, and Cancelled.
        """
        with process_failures(worker.title, step, self.shown_log):
            ending = self.environment.run_worker(
                [str(self.environment.interpreter), "-I", str(worker.script), REQUEST],
                self.staging,
                self.log,
                listener=log,
                timeout=worker.timeout,
                environment=worker.environment,
                cancelled=self.cancelled,
            )
        if ending.how == "cancelled":
            raise Cancelled(step)
        return ending

    def keep(self, folder: Path, names: Iterable[str]) -> Kept:
        """Store the artifacts of these names in a folder, and the log. Raises StoreError."""
        folder = real_path(folder)
        files = {name: real_path(folder / name) for name in names}
        # Several names may lead to one file, which can be taken once; and what a link leads to elsewhere is not ours to take.
        blobs = {file: self.store.put(file, move=file.is_relative_to(folder)) for file in dict.fromkeys(files.values())}
        return Kept({name: blobs[file] for name, file in files.items()}, self.store.put(self.log))


class Workplace(Protocol):
    """Opens further executions for an action."""

    def open(self, name: str) -> AbstractContextManager[Execution]:
        """An execution with a staging directory and a log of that name."""


@contextmanager
def process_failures(process: str, step: StepId | None = None, shown_log: str | None = None) -> Iterator[None]:
    """Raise EnvironmentFailure (EPB413) where a process could not be started, BuildError (EPB311) where it reports what none does."""
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        message = f"the {process} could not be run: {place}{error.strerror or error}"
        hint = "Check the toolchain's interpreter, and the space for the log."
        raise EnvironmentFailure(Problem("EPB413", message, step, hint)) from error
    except BadReport as error:
        message = f"the {process} reported what none does, and was stopped: {error}"
        hint = f"Something in the toolchain writes where the {process} reports."
        log = f" The whole log: {shown_log}." if shown_log is not None else ""
        raise BuildError(Problem("EPB311", message, step, hint + log)) from error

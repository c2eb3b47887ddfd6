"""`Execution`: context of a running action, with its toolchain, folder and log."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.cache.errors import DISK_FULL
from epbuild.core.digest import Blob, Count, hash_file
from epbuild.core.errors import BuildError, Cancelled, EnvironmentFailure, Problem, StepId
from epbuild.core.safepath import resolve_links
from epbuild.core.shown import describe_files, format_path
from epbuild.engine.events import Progress, StepOutput, count_step_bytes
from epbuild.engine.loop import Slot
from epbuild.toolchain.diagnosis import FREE_SPACE, is_progress_line, strip_log_prefix
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.process import Ending, WorkerListener
from epbuild.toolchain.reports import BadReport

REQUEST = "request.json"
"""Name of the file in the staging directory that a worker reads."""


class Worker(Struct, frozen=True):
    """Script that runs in the toolchain's Python, with a time limit and environment variables."""

    title: str
    """Name of the process in errors."""
    script: Path
    timeout: float | None = None
    """Time limit in seconds, or None for no limit."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)


class StepLog(WorkerListener):
    """Listener that emits a worker's log lines as output of a step, and ignores reports."""

    def __init__(self, step: str, progress: Progress) -> None:
        self.step = step
        self.progress = progress

    def logged(self, line: str) -> None:
        text = strip_log_prefix(line)
        if text:
            self.progress.report(StepOutput(self.step, text, status=is_progress_line(line)))


class Kept(NamedTuple):
    """Stored files of an action: its artifacts by name, and its log."""

    artifacts: Mapping[str, Blob]
    log: Blob


@dataclass(frozen=True)
class Execution:
    """Context of a running action: environment, folder, log, store and progress. A subclass also watches the action's inputs."""

    environment: Environment
    staging: Path
    log: Path
    shown_log: str
    """Name of the log in messages."""
    store: BlobStore
    progress: Progress
    cancelled: threading.Event
    known_digests: Mapping[Path, str] = field(default_factory=dict)
    """SHA-256 of blobs by path. They are not read, because their names contain the digest."""
    remembered: Digests | None = None
    """Digests of other files. None if they are not remembered."""
    slot: Slot | None = None
    """Job slot of the action. None if the action keeps it until it ends."""

    def digests(self, files: Iterable[Path]) -> Mapping[Path, str]:
        """Return the current SHA-256 of files and of all known blobs."""
        unknown = [file for file in files if file not in self.known_digests]
        found = {file: hash_file(file) for file in unknown} if self.remembered is None else self.remembered.of_many(unknown)
        return {**found, **self.known_digests}

    def recheck(self) -> None:
        """Raise an error if an input has changed since the action's key was computed."""

    def release_slot(self) -> None:
        """Release the slot after the worker has ended, as the action then only reads and writes files."""
        if self.slot is not None:
            self.slot.release()

    def relinking(self, paths: Sequence[Path]) -> AbstractContextManager[None]:
        """Return a context in which adding or removing hard links does not count as a change to the files. Keep the block short."""
        return nullcontext() if self.remembered is None else self.remembered.relinking(paths)

    def counting(self, step: str, doing: str, files: Iterable[Path]) -> AbstractContextManager[Count]:
        """Return a context that reports the progress of a step's work on `files`. It yields a callback for the size of each piece."""
        sizes = {str(path): path.stat().st_size for path in files if path.exists()}  # the work reports missing files
        return count_step_bytes(self.progress, step, f"{doing} {describe_files(sizes)}", sum(sizes.values()))

    def create_inner(self, staging: Path) -> Execution:
        """Return an execution of another action within this one, in the directory `staging`. Its log is beside this directory.

        The inner execution watches the same inputs. The outer one keeps its slot.
        """
        return replace(self, staging=staging, log=staging.with_suffix(".log"), slot=None)

    def run(self, worker: Worker, step: StepId, log: StepLog) -> Ending:
        """Run a worker on the request file in the staging directory until it ends, and return its result.

        Raises EnvironmentFailure if the worker cannot be started, BuildError for a malformed report, and Cancelled.
        """
        with process_failures(worker.title, step, self.shown_log):
            ending = _run(worker, self.environment, self.staging, self.log, log, self.cancelled)
        if ending.cause == "cancelled":
            raise Cancelled(step)
        return ending

    def keep(self, step: str, folder: Path, names: Iterable[str]) -> Kept:
        """Store the log and the artifacts in `folder` that `names` lists, as work of a step. Return their blobs. Raises StoreError."""
        folder = resolve_links(folder)
        files = {name: resolve_links(folder / name) for name in names}
        # Several names may refer to one file, which can be moved only once. A file outside the folder, reached by a link, must not be
        # moved.
        distinct = dict.fromkeys(files.values())
        with self.counting(step, "storing", distinct) as count:
            blobs = {file: self.store.put(file, move=file.is_relative_to(folder), count=count) for file in distinct}
        return Kept({name: blobs[file] for name, file in files.items()}, self.store.put(self.log))


def run_script(
    worker: Worker, environment: Environment, scratch: Path, request: Mapping[str, Any], cancelled: threading.Event
) -> Ending:
    """Run a worker on a request outside of an action, and return its result. The request and `worker.log` are in `scratch`.

    Raises EnvironmentFailure if the worker cannot be started, and BuildError for a malformed report.
    """
    with process_failures(worker.title):
        (scratch / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        return _run(worker, environment, scratch, scratch / "worker.log", WorkerListener(), cancelled)


def _run(
    worker: Worker, environment: Environment, folder: Path, log: Path, listener: WorkerListener, cancelled: threading.Event
) -> Ending:
    return environment.run_worker(
        [str(environment.interpreter), "-I", str(worker.script), REQUEST],
        folder,
        log,
        listener=listener,
        timeout=worker.timeout,
        environment=worker.environment,
        cancelled=cancelled,
    )


@contextmanager
def process_failures(process: str, step: StepId | None = None, shown_log: str | None = None) -> Iterator[None]:
    """Translate an OSError of the `with` block into EnvironmentFailure (EPB413), and a BadReport into BuildError (EPB311)."""
    try:
        yield
    except OSError as error:
        place = f"{format_path(error.filename)}: " if error.filename else ""
        message = f"cannot run the {process}: {place}{error.strerror or error}"
        # The log could not be written, perhaps because the process itself has filled the disk.
        hint = FREE_SPACE if error.errno in DISK_FULL else "Check the toolchain's interpreter."
        raise EnvironmentFailure(Problem("EPB413", message, step, hint)) from error
    except BadReport as error:
        message = f"the {process} sent an invalid report and was stopped: {error}"
        hint = f"Find the package in the toolchain that writes to the report pipe of the {process}."
        log = f" See the whole log: {shown_log}." if shown_log is not None else ""
        raise BuildError(Problem("EPB311", message, step, hint + log)) from error

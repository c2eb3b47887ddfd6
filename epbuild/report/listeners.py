"""Listeners of a build: context managers that receive its events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from epbuild.core.atomic import make_folders, write_file
from epbuild.core.errors import EnvironmentFailure, Problem
from epbuild.core.shown import format_path
from epbuild.core.units import format_estimate
from epbuild.engine.events import BatchProgress, Event, StepAdvanced
from epbuild.report.formatting import format_size
from epbuild.report.terminal.problems import print_problems
from epbuild.report.terminal.screen import is_screen
from epbuild.session.events import Hashed, Hashing, Noted

if TYPE_CHECKING:
    from epbuild.report.terminal.live import Rows

FILES = "files"
"""Name of the row that shows the progress of hashing."""
HEARTBEAT = 30.0
"""Seconds between lines about running work, if output does not go to a terminal."""


class Listener(BatchProgress):
    """Context manager that receives the events of a build."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """Close the listener. `ended` describes the exception that ended the build, if any."""

    def report(self, event: Event, /) -> None:
        """Record or show an event."""
        raise NotImplementedError


class BuildDocument(Protocol):
    """Collector that converts a build's events to a document."""

    def report(self, event: Event, /) -> None:
        """Record an event."""

    def text(self, error: BaseException | None) -> str:
        """Return the document. `error` is the exception that ended the build, or None."""


class DocumentFile(Listener):
    """Listener that forwards every event, and writes a document to a file when it closes."""

    def __init__(self, listener: Listener, path: Path, document: BuildDocument) -> None:
        self._listener = listener
        self._path = path
        self._document = document

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        """Write the file. Raises EnvironmentFailure if writing fails, unless another exception ended the build."""
        self._listener.__exit__(*ended)
        error = next((item for item in ended if isinstance(item, BaseException)), None)
        try:
            write_document(self._path, self._document.text(error))
        except EnvironmentFailure as failure:
            if error is None:
                raise
            print_problems(failure.problems)

    def report(self, event: Event, /) -> None:
        self._listener.report(event)
        self._document.report(event)


def write_document(path: Path, text: str) -> None:
    """Write a document atomically, and create its folders. Raises EnvironmentFailure (EPB443)."""
    try:
        make_folders(path.absolute().parent)
        write_file(path, text)
    except OSError as error:
        message = f"cannot write {format_path(path)}: {error.strerror or error}"
        raise EnvironmentFailure(
            Problem("EPB443", message, None, "Choose another file. Results and outputs were kept.")
        ) from error


def format_bytes(event: Hashing | StepAdvanced) -> str:
    """Return the progress of work on files, such as `hashing decoder.onnx: 1.2 GB of 3.2 GB, about 8 s left`."""
    doing = f"hashing {event.files}" if isinstance(event, Hashing) else event.doing
    return f"{doing}: {format_size(event.done)} of {format_size(event.total)}{format_rest(event.seconds_left)}"


def format_rest(seconds_left: float | None) -> str:
    """Return the end of a progress text, such as `, about 8 s left`. Empty if the time is unknown or zero."""
    return f", about {format_estimate(seconds_left)} left" if seconds_left else ""


class WaitingRow(Listener):
    """Listener that shows notes and hashing progress. The progress is a row on a terminal, and lines at intervals elsewhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: Rows | None = None
        self._next_line = 0.0

    def __exit__(self, *ended: object) -> None:
        self._close()

    def report(self, event: Event, /) -> None:
        match event:
            case Noted(text):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
            case Hashing() if is_screen(sys.stderr):
                if self._rows is None:
                    from epbuild.report.terminal.live import Rows  # Import late, because few commands wait.

                    self._rows = Rows(sys.stderr)
                self._rows.show(FILES, format_bytes(event))
            case Hashing() if self._clock() >= self._next_line:
                self._next_line = self._clock() + HEARTBEAT
                sys.stderr.write(f"{FILES}: {format_bytes(event)}\n")
                sys.stderr.flush()
            case Hashed():
                self._close()

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


@contextmanager
def show_activity(name: str, words: str) -> Iterator[None]:
    """Show a row with a spinner on standard error while the block runs, if standard error is a terminal."""
    if not is_screen(sys.stderr):
        yield
        return
    from epbuild.report.terminal.live import Rows  # Import late, because few commands wait.

    rows = Rows(sys.stderr)
    try:
        rows.show(name, words)
        yield
    finally:
        rows.close()

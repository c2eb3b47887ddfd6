"""Listeners of a build: context managers that receive its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from epbuild.engine.events import TakesMany

if TYPE_CHECKING:
    from epbuild.engine.events import Event


from pathlib import Path
from typing import Protocol

from epbuild.core.atomic import make_folders, write_file
from epbuild.core.errors import EnvironmentFailure, Problem
from epbuild.engine.events import Event
from epbuild.report.terminal.problems import print_problems


class Listener(TakesMany):
    """`Progress` that is open while a build runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """Close the listener, given the exception that ended the build."""

    def report(self, event: Event, /) -> None:
        """Record or show an event."""
        raise NotImplementedError


class BuildDocument(Protocol):
    """Collector of a build's events that returns a document."""

    def report(self, event: Event, /) -> None:
        """Record an event."""

    def text(self, error: BaseException | None) -> str:
        """Return the document, given the error that ended the build."""


class DocumentFile(Listener):
    """Listener that forwards every event, and finally writes a document to a file."""

    def __init__(self, listener: Listener, path: Path, document: BuildDocument) -> None:
        self._listener = listener
        self._path = path
        self._document = document

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        """Write the file. Raises EnvironmentFailure if that fails and nothing else was raised."""
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
        message = f"{path} could not be written: {error.strerror or error}"
        raise EnvironmentFailure(Problem("EPB443", message, None, "Name another file; results and outputs are kept.")) from error

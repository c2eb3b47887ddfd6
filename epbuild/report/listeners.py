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
    """A `Progress` that is open for as long as a build runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        """The exception that ended the build, if one did, as context managers are given it."""

    def report(self, event: Event, /) -> None:
        """Take note of an event, or show it."""
        raise NotImplementedError


class BuildDocument(Protocol):
    """Takes the events of a build, and has a document of it in the end."""

    def report(self, event: Event, /) -> None:
        """Take note of an event."""

    def text(self, error: BaseException | None) -> str:
        """The document of a build that `error` ended, or that went to its end."""


class DocumentFile(Listener):
    """A listener that passes every event on, and writes a document to a file in the end."""

    def __init__(self, listener: Listener, path: Path, document: BuildDocument) -> None:
        self._listener = listener
        self._path = path
        self._document = document

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        """Write the file. Raises EnvironmentFailure where that fails, unless something else was raised."""
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
    """Write a document whole, or not at all, and the folders for it. Raises EnvironmentFailure (EPB443)."""
    try:
        make_folders(path.absolute().parent)
        write_file(path, text)
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}"
        raise EnvironmentFailure(Problem("EPB443", message, None, "Name another file; results and outputs are kept.")) from error

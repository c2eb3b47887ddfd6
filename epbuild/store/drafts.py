"""Files that are either whole or absent: written as a draft, made durable, and only then renamed to their place."""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ABANDONED_AFTER_SECONDS = 24 * 3600
_WINDOWS_PAUSES_SECONDS = (0.01, 0.05, 0.2, 0.5)


class Draft:
    """A file that is being written; unless it is published, it goes away."""

    def __init__(self, path: Path, file: io.BufferedRandom) -> None:
        self.path = path
        self.file = file

    def publish(self, destination: Path, *, read_only: bool = False) -> None:
        """Close the draft and make it the file at `destination`, in place of any that is there. Raises OSError."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if read_only:
            self.path.chmod(0o444)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _rename(self.path, destination)
        _sync_directory(destination.parent)


class Drafts:
    """A folder for drafts; it must be on the file system that they are published to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def new(self) -> Iterator[Draft]:
        """Lend a new, empty draft. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{os.getpid()}-{os.urandom(6).hex()}"
        with path.open("x+b") as file:
            try:
                yield Draft(path, file)
            finally:
                # Windows deletes no open file, and a disk that is full makes closing fail: neither may hide the cause.
                with suppress(OSError):
                    file.close()
                with suppress(OSError):
                    discard(path)

    def sweep(self) -> None:
        """Remove drafts that nobody has written to for a day: their writers were killed."""
        oldest_kept = time.time() - _ABANDONED_AFTER_SECONDS
        with suppress(FileNotFoundError):
            for path in list(self._directory.iterdir()):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < oldest_kept:
                        discard(path)


def discard(path: Path) -> None:
    """Remove a file if it is there, read-only or not. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        # Windows keeps read-only files from being removed.
        path.chmod(stat.S_IWRITE)
        path.unlink(missing_ok=True)


def _rename(source: Path, destination: Path) -> None:
    # Windows refuses while a reader has the destination open; readers here take milliseconds.
    for pause in _WINDOWS_PAUSES_SECONDS if os.name == "nt" else ():
        try:
            source.replace(destination)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    source.replace(destination)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # where a directory cannot be opened
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

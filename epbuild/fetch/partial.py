"""Partial downloads, which survive the process, and errors from fetching."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from epbuild.core.digest import Blob, Hasher
from epbuild.core.errors import Problem, StoreError
from epbuild.core.shown import format_path

_BUFFER_BYTES = 1 << 20
_HEADER_VALUE = re.compile(r"[\x20-\x7e]+")


class FetchError(StoreError):
    """Error for a remote file that cannot be fetched or has a wrong digest (EPB510 to EPB512, EPB320 to EPB322)."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate an OSError in the `with` block, which writes fetched files, into StoreError (EPB503)."""
    try:
        yield
    except OSError as error:
        hint = "Free disk space there, or set EPBUILD_CACHE_DIR to a directory on another file system."
        raise StoreError(Problem("EPB503", f"cannot write {format_path(path)}: {error.strerror or error}", hint=hint)) from error


class Partial:
    """Partially downloaded file at `path`. Only one process may use it, under a lease. Raises StoreError if the disk fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.validator: str | None = None
        self._note = path.with_name(f"{path.name}.json")
        self._hasher = Hasher()
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            self._resume()

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with suppress(OSError):  # no effect after `close`; a failure here must not hide an earlier error
            self._file.close()
        if self.size == 0:
            self.discard()

    @property
    def size(self) -> int:
        return self._hasher.size

    @property
    def blob(self) -> Blob:
        return self._hasher.blob

    def restart(self, validator: str | None) -> None:
        """Delete the bytes received so far, and restart with the version of the file that `validator` identifies."""
        self._hasher, self.validator = Hasher(), validator
        with writing(self.path):
            # In this order, a process that is killed in between does not leave bytes of one version with the validator of another.
            self._file.truncate(0)
            self._note.write_text(json.dumps({"validator": validator}), encoding="utf-8")

    def append(self, chunk: bytes | memoryview) -> None:
        with writing(self.path):
            self._file.write(chunk)
        self._hasher.update(chunk)

    def close(self) -> None:
        """Write buffered bytes to disk, and close the file."""
        with writing(self.path):
            self._file.close()

    def discard(self) -> None:
        """Delete the partial file and the note beside it, which records the file's version."""
        with suppress(OSError):
            self._file.close()
        for path in (self.path, self._note):
            with suppress(OSError):  # a leftover file is harmless
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete the note that records the version of a file that was moved into the store."""
        with suppress(OSError):
            self._note.unlink(missing_ok=True)

    def _resume(self) -> None:
        with suppress(FileNotFoundError, ValueError):
            match json.loads(self._note.read_text(encoding="utf-8")):
                # Other text is not a valid header value, so it cannot come from a server.
                case {"validator": str(validator)} if _HEADER_VALUE.fullmatch(validator):
                    self.validator = validator
        self._file.seek(0)
        while chunk := self._file.read(_BUFFER_BYTES):
            self._hasher.update(chunk)

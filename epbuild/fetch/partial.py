"""Partial downloads, which survive the process, and errors of fetching."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from epbuild.core.digest import Blob, Hasher
from epbuild.core.errors import Problem, StoreError

_BUFFER_BYTES = 1 << 20
_HEADER_VALUE = re.compile(r"[\x20-\x7e]+")


class FetchError(StoreError):
    """Remote file that cannot be fetched, or whose content does not have its pinned digest (EPB510 to EPB512, EPB320 to EPB322)."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StoreError (EPB503) for an OSError while fetched files are written."""
    try:
        yield
    except OSError as error:
        hint = "Free some space there, or set EPBUILD_CACHE_DIR to a directory on another file system."
        raise StoreError(Problem("EPB503", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error


class Partial:
    """Partial file at `path`. One process at a time may use it, under a lease. Raises StoreError if the disk fails."""

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
        with suppress(OSError):  # no effect after `close`; after an error it must not hide that error
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
        """Delete the bytes that have arrived, and start with the version that `validator` names."""
        self._hasher, self.validator = Hasher(), validator
        with writing(self.path):
            # In this order, a process that is killed in between leaves no bytes with the validator of another version.
            self._file.truncate(0)
            self._note.write_text(json.dumps({"validator": validator}), encoding="utf-8")

    def append(self, chunk: bytes | memoryview) -> None:
        with writing(self.path):
            self._file.write(chunk)
        self._hasher.update(chunk)

    def close(self) -> None:
        """Write everything to the disk, and close the file."""
        with writing(self.path):
            self._file.close()

    def discard(self) -> None:
        """Delete the file and its note."""
        with suppress(OSError):
            self._file.close()
        for path in (self.path, self._note):
            with suppress(OSError):  # a leftover file does no harm
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete the note of a file that was moved into the store."""
        with suppress(OSError):
            self._note.unlink(missing_ok=True)

    def _resume(self) -> None:
        with suppress(FileNotFoundError, ValueError):
            match json.loads(self._note.read_text(encoding="utf-8")):
                # Any other text cannot be a header, so no server sent it.
                case {"validator": str(validator)} if _HEADER_VALUE.fullmatch(validator):
                    self.validator = validator
        self._file.seek(0)
        while chunk := self._file.read(_BUFFER_BYTES):
            self._hasher.update(chunk)

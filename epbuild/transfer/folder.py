"""Store of objects as files in a folder, which several machines may share."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epbuild.core.atomic import rename, sync_file
from epbuild.core.file_use import retry_in_use
from epbuild.core.safepath import open_regular
from epbuild.transfer.objects import Content, Download, FailureKind, MissingObjectError, TransferError

_ABANDONED_SECONDS = 24 * 3600
_OBJECT_ERRORS = frozenset({errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG})  # errors such as a folder in the place of a file
_CHECK = "Check that the directory exists (for a share: that it is mounted), and that this user may access it."


class FolderStore:
    """Store of the objects below `root`. Each object is a file, so a web server can serve the folder directly.

    If `writes` is set, a missing folder counts as empty, and the first `put` creates the folder.
    """

    def __init__(self, root: Path, *, writes: bool = False) -> None:
        self._root = root
        self._writes = writes
        self._drafts = root / "tmp"
        self._is_swept = False

    def get(self, path: str, start: int = 0, version: str | None = None) -> Download:
        with _translate_errors():
            try:
                return _FileDownload(self._root / path)
            except FileNotFoundError as error:
                if not self._writes and not self._root.is_dir():
                    raise
                raise MissingObjectError("the file does not exist") from error

    def has(self, path: str, size: int) -> bool:
        with _translate_errors():
            try:
                return (self._root / path).stat().st_size == size
            except FileNotFoundError:
                return False

    def put(self, path: str, content: Content) -> None:
        target, draft = self._root / path, self._drafts / f"{os.getpid()}-{secrets.token_hex(8)}"
        with _translate_errors():
            for folder in (target.parent, self._drafts):
                folder.mkdir(parents=True, exist_ok=True)
            self._delete_abandoned_drafts()
        try:
            with _translate_errors():
                file = draft.open("xb", buffering=0)
            with file:
                for piece in content.pieces():  # not inside `_translate_errors`, as errors of `pieces` concern the caller
                    with _translate_errors():
                        _write_all(file.fileno(), piece)
            with _translate_errors():
                sync_file(draft)
                try:
                    rename(draft, target)
                except PermissionError:  # Windows: another process is reading the existing object, which is equivalent
                    if not self.has(path, content.size):
                        raise
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def close(self) -> None:
        pass

    def _delete_abandoned_drafts(self) -> None:
        """Delete drafts that have not been modified for a day: their writers were killed. Only the first call does anything."""
        if self._is_swept:
            return
        self._is_swept = True
        old = time.time() - _ABANDONED_SECONDS
        with suppress(OSError):
            for path in list(self._drafts.iterdir()):
                with suppress(OSError):
                    if path.stat().st_mtime < old:
                        path.unlink()


class _FileDownload(Download):
    def __init__(self, path: Path) -> None:
        self._file = retry_in_use(lambda: open_regular(path))  # Windows opens no file while it is being replaced
        self.size = os.fstat(self._file.fileno()).st_size

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        with _translate_errors():
            return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise TransferError instead of an OSError in the `with` block."""
    try:
        yield
    except OSError as error:
        kind: FailureKind = "object" if error.errno in _OBJECT_ERRORS else "denied"
        raise TransferError(error.strerror or str(error), _CHECK, kind) from error

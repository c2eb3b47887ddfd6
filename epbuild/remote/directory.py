"""The remote cache in a directory, which may be a share of many machines."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epbuild.core.atomic import rename, sync_file
from epbuild.core.safepath import open_regular
from epbuild.remote.transport import Content, Download, RemoteError, Space

_ABANDONED_AFTER_SECONDS = 24 * 3600
_ABOUT_ONE = frozenset({errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG})  # not a file, but something else
_CHECK = "Check that the directory is there (a share: that it is mounted), and that this user may use it."


class DirectoryTransport:
    """The objects below `root`, each a file `ac/KEY` or `cas/DIGEST`: a web server can serve it as it is.

    `writes`: where there is no such directory, it is an empty one, and made when something is put there.
    """

    def __init__(self, root: Path, *, writes: bool = False) -> None:
        self._root = root
        self._writes = writes
        self._drafts = root / "tmp"
        self._is_swept = False

    def get(self, space: Space, name: str) -> Download | None:
        with self._explained():
            try:
                return _FileDownload(self._root / space / name)
            except FileNotFoundError:
                if not self._writes and not self._root.is_dir():
                    raise
                return None

    def has(self, space: Space, name: str, size: int) -> bool:
        with self._explained():
            try:
                return (self._root / space / name).stat().st_size == size
            except FileNotFoundError:
                return False

    def put(self, space: Space, name: str, content: Content) -> None:
        place, draft = self._root / space / name, self._drafts / f"{os.getpid()}-{secrets.token_hex(8)}"
        with self._explained():
            for folder in (place.parent, self._drafts):
                folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
        try:
            with self._explained():
                file = draft.open("xb", buffering=0)
            with file:
                for piece in content.pieces():
                    with self._explained():
                        _write_all(file.fileno(), piece)
            with self._explained():
                sync_file(draft)
                try:
                    rename(draft, place)
                except PermissionError:  # Windows: another process reads what is there, which is as good
                    if not self.has(space, name, content.size):
                        raise
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def close(self) -> None:
        pass

    def _sweep(self) -> None:
        """Remove, once, what writers that were killed left: files that nobody has written to for a day."""
        if self._is_swept:
            return
        self._is_swept = True
        old = time.time() - _ABANDONED_AFTER_SECONDS
        with suppress(OSError):
            for path in list(self._drafts.iterdir()):
                with suppress(OSError):
                    if path.stat().st_mtime < old:
                        path.unlink()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _failure(error) from error


class _FileDownload(Download):
    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)
        self.size = os.fstat(self._file.fileno()).st_size

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        try:
            return self._file.readinto(buffer)
        except OSError as error:
            raise _failure(error) from error

    def close(self) -> None:
        self._file.close()
        super().close()


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


def _failure(error: OSError) -> RemoteError:
    return RemoteError(error.strerror or str(error), _CHECK, "object" if error.errno in _ABOUT_ONE else "refused")

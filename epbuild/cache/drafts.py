"""Drafts: locked temporary files that are published by a rename.

A draft is written, synced, and then renamed to its destination. Until the rename, its writer holds a lock on it. The lock ends with the
process, even if the process is killed. A draft without a lock is abandoned.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from epbuild.core.atomic import rename, sync_directory
from epbuild.core.file_use import discard
from epbuild.core.host import is_windows

_SUFFIX = ".draft"
_ABANDONED_AFTER_SECONDS = 24 * 3600  # on file systems without locks


class Draft:
    """File that is being written. A draft that is not published is removed."""

    def __init__(self, path: Path, file: io.BufferedRandom) -> None:
        self.path = path
        self.file = file

    def publish(self, destination: Path, *, read_only: bool = False, durable: bool = True) -> None:
        """Rename the draft to `destination`, and close the draft. An existing file at `destination` is replaced.

        If `durable` is set, sync the draft first. Raises OSError.
        """
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        if is_windows():  # Windows cannot rename open files
            self.file.close()
        if read_only:
            self.path.chmod(0o444)
        destination.parent.mkdir(parents=True, exist_ok=True)
        rename(self.path, destination)
        self.file.close()  # closed only now, as closing releases the lock
        if durable:
            sync_directory(destination.parent)


class Drafts:
    """Folder of drafts. The folder must be on the same file system as the destinations."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def new(self) -> Iterator[Draft]:
        """Open a new, empty draft. Raises OSError."""
        path, opened = self._make_path(), list[io.BufferedRandom]()
        with _discard_after(path, opened):
            self._open(path, opened)
            yield Draft(path, opened[-1])

    @contextmanager
    def moved(self, path: Path) -> Iterator[Draft | None]:
        """Move the file at `path` into this folder and yield it as a draft.

        If the file cannot be moved, leave it and yield None. Callers then copy the file.

        The reason is not reported: an error that also prevents copying is raised by the copy.
        """
        destination = self._make_path()
        with _discard_after(destination, []):
            file = self._move(path, destination)
            if file is None:
                yield None
                return
            with file:
                yield Draft(destination, file)

    def _move(self, path: Path, destination: Path) -> io.BufferedRandom | None:
        """Lock and move a file, and return it. Return None if it is in use, has several names, or is on another file system."""
        if is_windows():  # Windows cannot move open files
            return None
        file = None
        try:
            file = path.open("r+b")
            status = path.lstat()  # lstat: moving a link would not move the file
            has_one_name = status.st_nlink == 1 and os.path.samestat(status, os.fstat(file.fileno()))
            # Lock the file and set its time before the move: without a lock and with an old time, it would count as abandoned.
            if has_one_name and _lock(file, wait=False) is not False:
                os.utime(file.fileno())
                self._directory.mkdir(parents=True, exist_ok=True)
                path.rename(destination)
                return file
        except OSError:
            pass
        if file is not None:
            file.close()
        return None

    def _make_path(self) -> Path:
        return self._directory / f"{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"

    def _open(self, path: Path, opened: list[io.BufferedRandom]) -> None:
        """Create and lock a draft, and append it to `opened` at once, so that an interrupted caller can close it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            opened.append(path.open("x+b"))
            _lock(opened[-1])
            if path.exists():
                return
            opened.pop().close()  # another process removed the file before it was locked

    def sweep(self) -> None:
        """Remove the drafts of killed writers. Drafts that cannot be removed are left, as they only use space."""
        with suppress(OSError):
            for path in list(self._directory.iterdir()):
                with suppress(OSError):
                    _remove_if_abandoned(path)

    def withdraw(self, place: Path, seen_ns: int) -> bool:
        """Remove the published file at `place` if its mtime is still `seen_ns`. Return whether it was removed.

        The file is moved to a private name before its mtime is checked. A process that is about to rely on a published file updates its
        mtime with `touch`. If `touch` runs before the move, the file is moved back. If it runs after the move, it finds no file. Raises
        OSError.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        aside = self._directory / f"{os.getpid()}-{os.urandom(6).hex()}"
        try:
            place.rename(aside)
        except FileNotFoundError:
            return False
        except PermissionError:
            if not is_windows():
                raise
            return False  # another process has the file open
        try:
            unused = aside.stat().st_mtime_ns == seen_ns
        except FileNotFoundError:  # another process swept the file: only old files are swept
            return True
        if unused or place.exists():
            discard(aside)
        else:
            rename(aside, place)
        return unused


@contextmanager
def _discard_after(path: Path, opened: Sequence[io.BufferedRandom]) -> Iterator[None]:
    """Close the `opened` files and remove the file at `path` after the block, if it exists and can be removed."""
    try:
        try:
            yield
        finally:
            _close_and_discard(path, opened)
    except KeyboardInterrupt:  # Ctrl-C may have interrupted the removal; only the first Ctrl-C raises
        _close_and_discard(path, opened)
        raise


def _close_and_discard(path: Path, opened: Sequence[io.BufferedRandom]) -> None:
    # Windows cannot remove open files. Closing may fail on a full disk. No failure may hide the original error.
    for file in opened:
        with suppress(OSError):
            file.close()
    with suppress(OSError):
        discard(path)


def touch(place: Path) -> bool:
    """Update the mtime of the published file at `place` to record a use. Return False on failure, such as a missing file."""
    try:
        os.utime(place)
    except OSError:
        return False
    return True


def _lock(file: io.BufferedRandom | io.BufferedReader, *, shared: bool = False, wait: bool = True) -> bool | None:
    """Lock a draft and return True.

    Return None if locks are unsupported. If `wait` is false, return False for a draft that another process has locked.
    """
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows and some network file systems have no such locks
        return None
    return True


def _remove_if_abandoned(path: Path) -> None:
    """Remove a draft that is not locked. If locks are unsupported, remove a draft that has not been written to for a day."""
    if is_windows():
        _remove_if_abandoned_on_windows(path)
        return
    with path.open("rb") as file:
        abandoned = os.fstat(file.fileno()).st_mtime < time.time() - _ABANDONED_AFTER_SECONDS
        locked = _lock(file, shared=True, wait=False)
        if locked is False:
            return
        abandoned |= locked is True and path.suffix == _SUFFIX
        if abandoned:
            discard(path)


def _remove_if_abandoned_on_windows(path: Path) -> None:
    """Remove a draft whose process has ended, or any process's draft that has not been written to for a day.

    The draft is not opened, because its writer could not rename it in the meantime. Windows does not remove drafts that processes of other
    machines have open.
    """
    import psutil

    if path.stat().st_mtime < time.time() - _ABANDONED_AFTER_SECONDS:
        discard(path)
        return
    writer = path.name.partition("-")[0]
    if path.suffix == _SUFFIX and writer.isdecimal() and not psutil.pid_exists(int(writer)):
        discard(path)

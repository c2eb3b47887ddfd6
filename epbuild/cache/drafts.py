"""Drafts: locked temporary files that are published by a rename.

Each is written, made durable, and only then renamed to its place. Until then its writer locks it, and the lock ends with the process, even
if killed: what nobody holds is rubbish.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epbuild.core.atomic import rename, sync_directory

_SUFFIX = ".draft"
_ABANDONED_AFTER_SECONDS = 24 * 3600  # where there are no locks


class Draft:
    """A file that is being written; unless it is published, it goes away."""

    def __init__(self, path: Path, file: io.BufferedRandom) -> None:
        self.path = path
        self.file = file

    def publish(self, destination: Path, *, read_only: bool = False, durable: bool = True) -> None:
        """Close the draft and make it the file at `destination`, in place of any that is there; `durable`: also after a crash.

        Raises OSError.
        """
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        if os.name == "nt":  # which renames no open file
            self.file.close()
        if read_only:
            self.path.chmod(0o444)
        destination.parent.mkdir(parents=True, exist_ok=True)
        rename(self.path, destination)
        self.file.close()  # not before: closing it gives up its lock
        if durable:
            sync_directory(destination.parent)


class Drafts:
    """A folder for drafts; it must be on the file system that they are published to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def new(self) -> Iterator[Draft]:
        """Open a new, empty draft. Raises OSError."""
        path = self._name()
        with _discarded(path):
            file = self._open(path)
            try:
                yield Draft(path, file)
            finally:
                # Windows deletes no open file, and a disk that is full makes closing fail: neither may hide the cause.
                with suppress(OSError):
                    file.close()

    @contextmanager
    def moved(self, path: Path) -> Iterator[Draft | None]:
        """Open a draft that was the file at `path`; None where it cannot be moved here, and so is where it was.

        Why it cannot is not returned: copying it instead meets what is wrong with it.
        """
        here = self._name()
        with _discarded(here):
            file = self._pull(path, here)
            if file is None:
                yield None
                return
            with file:
                yield Draft(here, file)

    def _pull(self, path: Path, here: Path) -> io.BufferedRandom | None:
        """Move a file of the same file system here, locked, unless another process uses it or can reach it by another name."""
        if os.name == "nt":  # which moves no open file
            return None
        file = None
        try:
            file = path.open("r+b")
            status = path.lstat()  # of a link itself: moving that would leave its file behind
            alone = status.st_nlink == 1 and os.path.samestat(status, os.fstat(file.fileno()))
            # Locked and young before it is here, where what is neither is taken for rubbish.
            if alone and _lock(file, wait=False) is not False:
                os.utime(file.fileno())
                self._directory.mkdir(parents=True, exist_ok=True)
                path.rename(here)
                return file
        except OSError:
            pass
        if file is not None:
            file.close()
        return None

    def _name(self) -> Path:
        return self._directory / f"{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"

    def _open(self, path: Path) -> io.BufferedRandom:
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("x+b")
            _lock(file)
            if path.exists():
                return file
            file.close()  # another process swept it away in the instant before it was locked

    def sweep(self) -> None:
        """Remove drafts whose writers were killed, as far as this user may; what cannot be removed costs nothing but space."""
        with suppress(OSError):
            for path in list(self._directory.iterdir()):
                with suppress(OSError):
                    _remove_if_abandoned(path)

    def withdraw(self, place: Path, seen_ns: int) -> bool:
        """Remove the published file at `place`, last used at `seen_ns` (its mtime), unless it was used since; return whether it is gone.

        It is moved here first, where nobody finds it, and only then is its time looked at. A process that is to rely on a published file
        gives it a new time (`touch`): either before the move, and then it is put back, or too late, and then it finds that it is
        not there. Raises OSError.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        aside = self._directory / f"{os.getpid()}-{os.urandom(6).hex()}"
        try:
            place.rename(aside)
        except FileNotFoundError:
            return False
        except PermissionError:
            if os.name != "nt":
                raise
            return False  # another process has it open
        try:
            unused = aside.stat().st_mtime_ns == seen_ns
        except FileNotFoundError:  # swept away, as only what is old is
            return True
        if unused or place.exists():
            discard(aside)
        else:
            rename(aside, place)
        return unused


@contextmanager
def _discarded(path: Path) -> Iterator[None]:
    """Have a file gone after the block, where it is one and can be removed."""
    try:
        try:
            yield
        finally:
            with suppress(OSError):
                discard(path)
    except KeyboardInterrupt:  # which comes once, and may have cut that short
        with suppress(OSError):
            discard(path)
        raise


def touch(place: Path) -> bool:
    """Note that the published file at `place` is used now; False where that cannot be, for one because it is not there any more."""
    try:
        os.utime(place)
    except OSError:
        return False
    return True


def _lock(file: io.BufferedRandom | io.BufferedReader, *, shared: bool = False, wait: bool = True) -> bool | None:
    """Lock a draft: False where another holds a lock on it and is not to be waited for, None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows has no such locks, nor have some network file systems
        return None
    return True


def _remove_if_abandoned(path: Path) -> None:
    """Remove a draft that nobody holds, or, where that cannot be known, that no process has written to for a day."""
    with path.open("rb") as file:
        abandoned = os.fstat(file.fileno()).st_mtime < time.time() - _ABANDONED_AFTER_SECONDS
        locked = _lock(file, shared=True, wait=False)
        if locked is False:
            return
        abandoned |= locked is True and path.suffix == _SUFFIX
        if os.name == "nt":  # which removes no open file
            file.close()
        if abandoned:
            discard(path)


def discard(path: Path) -> None:
    """Remove a file if it is there, read-only or not. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt":
            raise
        # Windows keeps read-only files from being removed.
        path.chmod(stat.S_IWRITE)
        path.unlink(missing_ok=True)

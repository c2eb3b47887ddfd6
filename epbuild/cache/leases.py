"""Leases: one holder at a time among all processes of this machine.

So an action that two builds need runs once.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epbuild.cache.errors import explained

if TYPE_CHECKING:
    from filelock import BaseFileLock

if sys.platform != "win32":
    import fcntl

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_POLL_SECONDS = 0.1
_OPENED = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class Cancelled(Exception):
    """The wait for a lease was given up because its `cancelled` event was set; nothing failed."""


class LeaseListener(Protocol):
    """Follows who wants a lease."""

    def waiting(self) -> None:
        """Another process, or another thread, holds it; called once, if at all."""


@contextmanager
def lease(
    root: Path,
    key: str,
    *,
    listener: LeaseListener | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[None]:
    """Hold the lease `key` of the store at `root` for the length of the block; it ends with its process, even if killed.

    `listener` is notified if another holds it. Raises Cancelled when `cancelled` is set during the wait, StoreError
    when the lock file cannot be made, ValueError for a key that cannot name a file.
    """
    place = _place(root, key)
    lock = _try(place)
    if lock is None and listener is not None:
        listener.waiting()
    while lock is None:
        if cancelled is None:
            time.sleep(_POLL_SECONDS)
        elif cancelled.wait(_POLL_SECONDS):
            raise Cancelled(key)
        lock = _try(place)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def lease_if_free(root: Path, key: str) -> Iterator[bool]:
    """Hold the lease `key` as `lease` does, but only if nobody holds it now: the block is given whether it does."""
    lock = _try(_place(root, key))
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def any_held(folder: Path) -> bool:
    """Whether a lock file in `folder`, which need not be there, is held by anyone. Raises StoreError."""
    with explained(f"look for locks in {folder}", elsewhere=None):
        for place in folder.glob("*.lock"):
            lock = LockFile(place)
            if not lock.acquire():
                return True
            lock.release()
    return False


class LockFile:
    """A lock on a file, as filelock takes it, that ends with its process, even if killed: taken in a tenth of the time, and without the
    import of filelock, where all is as it mostly is.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._descriptor: int | None = None
        self._by_filelock: BaseFileLock | None = None

    def acquire(self) -> bool:
        """Take it if nobody holds it, and return whether that worked. Raises OSError when the file cannot be made."""
        if self._flock():
            return True
        from filelock import FileLock, Timeout

        self._by_filelock = FileLock(self._place)
        try:
            self._by_filelock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    def wait(self) -> None:
        """Take it as soon as nobody else holds it. Raises OSError when the file cannot be made."""
        while not self.acquire():
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Give it up, if it is held."""
        if self._by_filelock is not None:
            self._by_filelock.release()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked off has it open as well
        finally:
            os.close(descriptor)

    def _flock(self) -> bool:
        """Take the lock where nothing is in the way: all else is left to filelock."""
        if sys.platform == "win32":
            return False
        try:
            self._descriptor = _open(self._place)
        except OSError:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._descriptor).st_nlink:  # else the file was removed just now
                return True
        except OSError:
            pass
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)
        return False


def _open(place: Path) -> int:
    try:
        return os.open(place, _OPENED, 0o666)
    except FileNotFoundError:  # the first lock of its folder
        place.parent.mkdir(parents=True, exist_ok=True)
        return os.open(place, _OPENED, 0o666)


def _place(root: Path, key: str) -> Path:
    if not _NAME.fullmatch(key):
        raise ValueError(f"not a name for a lease: {key!r}")
    # The file stays after the lease: removing it would let a waiter lock a file that nobody else can find any more.
    return root / "leases" / f"{key}.lock"


def _try(place: Path) -> LockFile | None:
    """The lock, if nobody holds it. Raises StoreError."""
    lock = LockFile(place)
    with explained(f"lock {place}"):
        return lock if lock.acquire() else None

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
    from filelock import FileLock

    with explained(f"look for locks in {folder}", elsewhere=None):
        for place in folder.glob("*.lock"):
            lock = FileLock(place)
            if not try_lock(lock):
                return True
            lock.release()
    return False


def try_lock(lock: BaseFileLock) -> bool:
    """Take the lock if nobody holds it, and return whether that worked. Raises OSError when the file cannot be made."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


class _Lock(Protocol):
    """A lock that is held."""

    def release(self) -> None: ...


class _Flock:
    """A lock on an open file, as filelock takes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        try:
            if sys.platform != "win32":
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a process that was forked off has it open as well
        finally:
            os.close(self._descriptor)


def _place(root: Path, key: str) -> Path:
    if not _NAME.fullmatch(key):
        raise ValueError(f"not a name for a lease: {key!r}")
    # The file stays after the lease: removing it would let a waiter lock a file that nobody else can find any more.
    return root / "leases" / f"{key}.lock"


def _try(place: Path) -> _Lock | None:
    """The lock, if nobody holds it. Raises StoreError."""
    lock = _flock(place)
    if lock is not None:
        return lock
    from filelock import FileLock

    found = FileLock(place)
    with explained(f"lock {place}"):
        return found if try_lock(found) else None


def _flock(place: Path) -> _Flock | None:
    """The lock, where all is as it mostly is: then filelock, to which all else is left, would do this, in ten times as long."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else the file was removed just now
            return _Flock(descriptor)
    except OSError:
        pass
    os.close(descriptor)
    return None

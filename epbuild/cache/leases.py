"""Leases: one holder at a time among all processes of this machine.

So an action that two builds need runs once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epbuild.cache.errors import explained

if TYPE_CHECKING:
    from filelock import BaseFileLock

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
    with explained(f"look for locks in {folder}", elsewhere=None):
        for place in folder.glob("*.lock"):
            lock = try_lock(place)
            if lock is None:
                return True
            lock.release()
    return False


def try_lock(place: Path) -> BaseFileLock | None:
    """Return a lock on the file at `place`, or None if another holder has it. It ends with its process, even if killed.

    Raises OSError when the file cannot be made.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _place(root: Path, key: str) -> Path:
    if not _NAME.fullmatch(key):
        raise ValueError(f"not a name for a lease: {key!r}")
    # The file stays after the lease: removing it would let a waiter lock a file that nobody else can find any more.
    return root / "leases" / f"{key}.lock"


def _try(place: Path) -> BaseFileLock | None:
    """Return the lock, or None if another holder has it. Raises StoreError."""
    with explained(f"lock {place}"):
        place.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(place)

"""Leases: cross-process locks with one holder at a time on this machine.

With a lease, an action that two builds need runs only once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.cache.errors import translate_os_errors
from epbuild.core.errors import Cancelled

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_POLL_SECONDS = 0.1


@contextmanager
def lease(
    root: Path,
    key: str,
    *,
    on_wait: Callable[[], object] | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[None]:
    """Hold the lease `key` of the store at `root` during the block.

    The lease ends with its process, even if the process is killed. `on_wait` is called once before a wait if the lease is not free. Raises
    Cancelled if `cancelled` is set during the wait, StoreError if the lock file cannot be created, and ValueError for a key that is not a
    file name.
    """
    place = _get_lock_path(root, key)
    lock = _try_lease(place)
    if lock is None and on_wait is not None:
        on_wait()
    while lock is None:
        if cancelled is None:
            time.sleep(_POLL_SECONDS)
        elif cancelled.wait(_POLL_SECONDS):
            raise Cancelled(key)
        lock = _try_lease(place)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def lease_if_free(root: Path, key: str) -> Iterator[bool]:
    """Hold the lease `key` during the block if the lease is free. Yield whether it is held."""
    lock = _try_lease(_get_lock_path(root, key))
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def is_any_held(folder: Path) -> bool:
    """Return whether any lock file in `folder` is locked. The folder need not exist. Raises StoreError."""
    with translate_os_errors("list the locks in {}", folder, elsewhere=None):
        for place in folder.glob("*.lock"):
            lock = try_lock(place)
            if lock is None:
                return True
            lock.release()
    return False


def try_lock(place: Path) -> BaseFileLock | None:
    """Lock the file at `place` and return the lock, or None if another holder has locked it.

    The lock ends with its process, even if the process is killed. Raises OSError if the file cannot be created.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _get_lock_path(root: Path, key: str) -> Path:
    if not _NAME.fullmatch(key):
        raise ValueError(f"invalid lease name: {key!r}")
    # The file is kept after the lease. If it were removed, a waiting process could lock a file that no other process can find.
    return root / "leases" / f"{key}.lock"


def _try_lease(place: Path) -> BaseFileLock | None:
    """Return the lock, or None if another holder has it. Raises StoreError."""
    with translate_os_errors("lock {}", place):
        place.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(place)

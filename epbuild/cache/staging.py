"""Fresh directories to work in, which go away when their user is done or dead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.cache.errors import explained
from epbuild.cache.leases import try_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock

_LONGEST_NAME = 40
_LOCK = ".lock"


@contextmanager
def staged(parent: Path, name: str) -> Iterator[Path]:
    """Open a new, empty directory below `parent`, whose name begins like `name`; it is removed after the block.

    Raises StoreError when it cannot be made.
    """
    from filelock import FileLock

    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-_LONGEST_NAME:].lstrip(".-")
    directory = parent / f"{readable}-{os.getpid()}-{os.urandom(4).hex()}"
    lock = FileLock(_lock_path(directory))
    try:
        try:
            # Locked before it exists: whatever `sweep` can see, it can find out whether a process uses it.
            with explained(f"make {directory}", elsewhere=None):
                parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                while not _lock_path(directory).exists():  # swept away in the instant before it was locked
                    lock.release()
                    lock.acquire()
                directory.mkdir()
            yield directory
        finally:
            _remove(directory, lock)
    except BaseException:  # Ctrl-C, which comes once, and may have cut that short
        with suppress(OSError):  # of a lock that was just given up
            _remove(directory, lock)
        raise


def sweep(parent: Path) -> None:
    """Remove the directories below `parent` whose users are dead. Raises StoreError."""
    with explained(f"clean up {parent}", elsewhere=None):
        try:
            entries = list(parent.iterdir())
        except FileNotFoundError:
            return
        # A build that is killed may leave either without the other.
        for directory in {entry.with_name(entry.name.removesuffix(_LOCK)) for entry in entries}:
            lock = try_lock(_lock_path(directory))
            if lock is not None:
                _remove(directory, lock)


def _remove(directory: Path, lock: BaseFileLock) -> None:
    import shutil

    # What cannot be removed now, such as a file that a program on Windows still has open, is for a later sweep.
    shutil.rmtree(directory, ignore_errors=True)
    if os.name == "nt":  # which removes no open file
        lock.release()
    if not directory.exists():
        with suppress(OSError):
            _lock_path(directory).unlink(missing_ok=True)
    # Not before: a process that took the lock in between would hold a file that no other can find any more.
    lock.release()


def _lock_path(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{_LOCK}")

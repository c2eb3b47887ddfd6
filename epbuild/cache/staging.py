"""Staging directories, which are removed after use or when their process is dead."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import try_lock
from epbuild.core.entries import remove_tree
from epbuild.core.host import is_windows

if TYPE_CHECKING:
    from filelock import BaseFileLock

_MAX_NAME = 40
_LOCK = ".lock"


@contextmanager
def staged(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new, empty directory below `parent`, and remove it after the block.

    The directory's name is derived from `name`. Raises StoreError if the directory cannot be created.
    """
    from filelock import FileLock

    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-_MAX_NAME:].lstrip(".-")
    directory = parent / f"{readable}-{os.getpid()}-{os.urandom(4).hex()}"
    lock = FileLock(_get_lock_path(directory))
    try:
        try:
            # Locked before the directory exists, so that `sweep` can determine for every directory whether a process uses it.
            with translate_os_errors("create {}", directory, elsewhere=None):
                parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                while not _get_lock_path(directory).exists():  # another process swept the file before it was locked
                    lock.release()
                    lock.acquire()
                directory.mkdir()
            yield directory
        finally:
            _remove(directory, lock)
    except BaseException as error:  # Ctrl-C may have interrupted the removal; only the first Ctrl-C raises
        # Windows cannot remove open files. This closes files that only the interrupted functions refer to.
        if is_windows():
            traceback.clear_frames(error.__traceback__)
        with suppress(OSError):  # the lock may have been released already
            _remove(directory, lock)
        raise


def sweep(parent: Path) -> None:
    """Remove the directories below `parent` whose processes are dead. Raises StoreError."""
    with translate_os_errors("clean up {}", parent, elsewhere=None):
        try:
            entries = list(parent.iterdir())
        except FileNotFoundError:
            return
        # A killed build may leave a directory without a lock file, or a lock file without a directory.
        for directory in {entry.with_name(entry.name.removesuffix(_LOCK)) for entry in entries}:
            lock = try_lock(_get_lock_path(directory))
            if lock is not None:
                _remove(directory, lock)


def _remove(directory: Path, lock: BaseFileLock) -> None:
    # A later sweep removes the rest, such as a file that a program on Windows still has open.
    remove_tree(directory)
    if is_windows():  # Windows cannot remove open files
        lock.release()
    if not directory.exists():
        with suppress(OSError):
            _get_lock_path(directory).unlink(missing_ok=True)
    # Not released earlier: a process that locked the file in between would hold a lock that no other process can find.
    lock.release()


def _get_lock_path(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{_LOCK}")

"""Disk errors of the store, with the path and a hint (EPB5xx)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.errors import Problem, StoreError

ANOTHER_CACHE = "set EPBUILD_CACHE_DIR to a directory on another file system"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class MissingBlob(StoreError):
    """Missing blob in the store (EPB501)."""

    def __init__(self, digest: str, root: Path) -> None:
        self.digest = digest
        hint = "It was removed or never added. Run the build again to recreate it."
        super().__init__(Problem("EPB501", f"the store {root} does not contain {digest}", hint=hint))


class DamagedBlob(StoreError):
    """Blob whose content has changed, and which has been set aside (EPB502)."""

    def __init__(self, digest: str, root: Path) -> None:
        self.digest = digest
        message = f"the blob {digest} in the store {root} was changed after it was stored and is not used"
        hint = "Run the build again to recreate it. If this happens again, check the disk."
        super().__init__(Problem("EPB502", message, hint=hint))


class NewerRecord(StoreError):
    """Record that a newer epbuild wrote (EPB506)."""

    def __init__(self, place: Path, version: int) -> None:
        message = f"{place} was written by a newer epbuild (format {version})"
        super().__init__(Problem("EPB506", message, hint="Use the newer epbuild to manage this store."))


@contextmanager
def translate_os_errors(task: str, *, code: str = "EPB503", elsewhere: str | None = ANOTHER_CACHE) -> Iterator[None]:
    """Translate an OSError of the block into a StoreError "cannot <task>" with the reason and a hint.

    `elsewhere` is an alternative that the hint suggests, such as using another directory. With None, the hint suggests no alternative.
    """
    try:
        yield
    except OSError as error:
        hint = f"{_cure(error)}, or {elsewhere}." if elsewhere else f"{_cure(error)}."
        raise StoreError(Problem(code, f"cannot {task}: {error.strerror or error}", hint=hint)) from error


def _cure(error: OSError) -> str:
    if error.errno in _FULL:
        return "Free some space there"
    if error.errno in _FORBIDDEN:
        return "Give this user permission to access it"
    if error.errno == errno.ENAMETOOLONG:
        return "Shorten the path"
    if isinstance(error, FileNotFoundError):
        return "Check that the path is right"
    return "Check the path and its file system"

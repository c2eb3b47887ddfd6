"""Disk errors of the store, with the path and a hint (EPB5xx)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.core.errors import Problem, StoreError
from epbuild.core.file_use import CLOSE_PROGRAM, describe_use
from epbuild.core.shown import format_path

ANOTHER_CACHE = "set EPBUILD_CACHE_DIR to a directory on another file system"

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class MissingBlob(StoreError):
    """Error for a blob that the store does not contain (EPB501)."""

    def __init__(self, digest: str, root: Path) -> None:
        self.digest = digest
        hint = "The blob was removed or never added. Run the build again to recreate it."
        super().__init__(Problem("EPB501", f"the store {root} does not contain the blob {digest}", hint=hint))


class DamagedBlob(StoreError):
    """Error for a blob that has been set aside because its content has changed (EPB502)."""

    def __init__(self, digest: str, root: Path) -> None:
        self.digest = digest
        message = f"the blob {digest} in the store {root} was changed after it was stored, and is ignored"
        hint = "Run the build again to recreate it. If this happens again, check the disk."
        super().__init__(Problem("EPB502", message, hint=hint))


class NewerRecord(StoreError):
    """Error for a record that a newer epbuild wrote (EPB506)."""

    def __init__(self, place: Path, version: int) -> None:
        message = f"{format_path(place)} was written by a newer epbuild (format {version})"
        super().__init__(Problem("EPB506", message, hint="Use the newer epbuild to manage this store."))


@contextmanager
def translate_os_errors(
    task: str, *paths: Path | str, code: str = "EPB503", elsewhere: str | None = ANOTHER_CACHE
) -> Iterator[None]:
    """Translate an OSError of the block into a StoreError "cannot <task>" with the reason and a hint.

    `paths` replace the `{}` in the task. They are formatted only after an error, because thousands of blocks end without one.
    `elsewhere` is an alternative that the hint suggests, such as using another directory. With None, the hint suggests no alternative.
    """
    try:
        yield
    except OSError as error:
        used = describe_use(error)
        hint = f"{_suggest_fix(error)}, or {elsewhere}." if elsewhere else f"{_suggest_fix(error)}."
        message = f"cannot {task.format(*map(format_path, paths))}: {used or error.strerror or error}"
        raise StoreError(Problem(code, message, hint=CLOSE_PROGRAM if used else hint)) from error


def _suggest_fix(error: OSError) -> str:
    if error.errno in DISK_FULL:
        return "Free some disk space"
    if error.errno in _FORBIDDEN:
        return "Give this user access to this path"
    if error.errno == errno.ENAMETOOLONG:
        return "Shorten the path"
    if isinstance(error, FileNotFoundError):
        return "Check the spelling of the path"
    return "Check the path and its file system"

"""Time of a file's last change of any kind, which no program can set back."""

from __future__ import annotations

import os
import stat

from epbuild.core.host import on_windows

TYPE_CHECKING = False  # as type checkers read it, without the import of typing
if TYPE_CHECKING:
    from os import PathLike


def changed_ns(path: str | PathLike[str], status: os.stat_result) -> int:
    """Return when the file at `path`, whose `stat` or `lstat` is `status`, was last changed: in nanoseconds since the epoch, or 0.

    On Linux and macOS that is its `ctime`. On Windows, Python's `ctime` is the time of creation, which does not show that a file was
    rewritten with its old size and modification time. There the file system is asked for the time of change. The result is 0 if it has none
    (FAT, exFAT); then callers compare size, modification time and identity only.
    """
    if not on_windows():
        return status.st_ctime_ns
    from epbuild.core.windows import change_time_ns

    return change_time_ns(path, follow=not stat.S_ISLNK(status.st_mode))

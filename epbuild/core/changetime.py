"""The time of a file's last change in any way, which no program can set back."""

from __future__ import annotations

import os
import stat

from epbuild.core.host import on_windows

TYPE_CHECKING = False  # as type checkers read it, without the import of typing
if TYPE_CHECKING:
    from os import PathLike


def changed_ns(path: str | PathLike[str], status: os.stat_result) -> int:
    """When the file at `path`, whose `stat` or `lstat` is `status`, was last changed: in nanoseconds since the epoch, or 0.

    That is its `ctime`, but on Windows, where Python's is the time of creation, and a file that is written anew under its old size and
    modification time would look the same: there the file system is asked for the time of change. 0 where it has none (FAT, exFAT) or
    does not give it; then size, modification time and identity have to do.
    """
    if not on_windows():
        return status.st_ctime_ns
    from epbuild.core.windows import change_time_ns

    return change_time_ns(path, follow=not stat.S_ISLNK(status.st_mode))

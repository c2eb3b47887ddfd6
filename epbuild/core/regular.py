"""Files that a user names, opened for reading: a pipe or a device is refused, as one might wait for it for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open the file at `path` for reading. Raises OSError, also when it is none."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    return path.open("rb")


def read_regular(path: Path) -> bytes:
    """All of the file at `path`. Raises OSError, also when it is none."""
    with open_regular(path) as file:
        return file.read()

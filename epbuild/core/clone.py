"""Copies of files that share their bytes on disk until one of them changes (reflinks), where the file system can."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

if sys.platform == "linux":
    import fcntl

# ioctl_ficlone(2), as numbered on x86 and Arm; where it has another number the answer is ENOTTY, and a copy is made.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})


class CannotClone(Exception):
    """The two files lie where nothing can be cloned; the next attempt fails too."""


def clone(source: int, destination: int) -> bool:
    """Give the open file `destination` all the bytes of the open file `source`; False where that failed, for a copy to meet and to report.

    Raises CannotClone where the system or the file system cannot do it at all.
    """
    if sys.platform != "linux":
        raise CannotClone
    try:
        fcntl.ioctl(destination, _FICLONE, source)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            raise CannotClone from error
        return False
    return True


def copy_file(source: Path, destination: Path) -> None:
    """Write `destination` as a file of its own with the bytes of `source`, cloned if possible; links to `source` are followed.

    What `destination` names already is overwritten. Raises OSError.
    """
    with source.open("rb", buffering=0) as original, destination.open("wb", buffering=0) as copy:
        try:
            if clone(original.fileno(), copy.fileno()):
                return
        except CannotClone:
            pass
    shutil.copyfile(source, destination)

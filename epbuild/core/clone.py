"""Copies of files that share their bytes on disk (reflinks) where possible."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from epbuild.core.digest import Reading, Write, read
from epbuild.core.safepath import open_raw

if sys.platform == "linux":
    import fcntl

# ioctl_ficlone(2), as numbered on x86 and Arm; where it has another number the answer is ENOTTY, and a copy is made.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

# Linux keeps what comes in one write in one piece of memory. In virtual machines large pieces often have to be fetched from the host
# first: writes of 1 MiB took twice as long as these.
_WRITE_BYTES = 64 * 1024


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
    with open_raw(source) as original, destination.open("wb", buffering=0) as copy:
        try:
            if clone(original.fileno(), copy.fileno()):
                return
        except CannotClone:
            pass
    shutil.copyfile(source, destination)


class Copier:
    """Copies open files and names what arrived; shares the bytes on disk (reflink) wherever the file system can."""

    def __init__(self) -> None:
        self._cannot_clone: set[tuple[int, int]] = set()

    def copy(self, source: io.FileIO, destination: io.BufferedRandom, reading: Reading) -> None:
        """Fill the new, empty `destination` from `source`; what is found describes the destination. Raises OSError."""
        if self._clone(source, destination):
            read(destination, reading)
        else:
            read(source, reading, partial(write_pieces, destination.write))

    def _clone(self, source: io.FileIO, destination: io.BufferedRandom) -> bool:
        devices = (os.fstat(source.fileno()).st_dev, os.fstat(destination.fileno()).st_dev)
        if devices in self._cannot_clone:
            return False
        try:
            return clone(source.fileno(), destination.fileno())
        except CannotClone:
            self._cannot_clone.add(devices)
            return False


def write_pieces(write: Write, data: memoryview) -> None:
    """Write all of `data`, in pieces of a size that systems take quickly. Raises OSError."""
    for start in range(0, len(data), _WRITE_BYTES):
        write(data[start : start + _WRITE_BYTES])

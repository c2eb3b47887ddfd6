"""File copies that share bytes on disk with the source (reflinks) if possible."""

from __future__ import annotations

import errno
import io
import shutil
import sys
from functools import partial
from pathlib import Path

from epbuild.core.digest import Hasher, Write, hash_into
from epbuild.core.safepath import open_raw

if sys.platform == "linux":
    import fcntl

# See ioctl_ficlone(2). The number is for x86 and Arm. Systems with another number return ENOTTY, and the file is copied.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

# Linux keeps the bytes of one write in contiguous memory, and virtual machines often have to request large pieces from the host.
# Writes of 1 MiB took twice as long.
_WRITE_BYTES = 64 * 1024


class CannotClone(Exception):
    """Error for a system or a file system that does not support clones."""


def clone(source: int, destination: int) -> bool:
    """Make the open file `destination` a clone of the open file `source`. Return whether this succeeded.

    Raises CannotClone if the system or the file system does not support clones. After any other error, return False. The
    caller then copies the file, and the copy reports the error.
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
    """Copy `source` to `destination`, as a clone if possible. Later changes to one file do not affect the other.

    A link at `source` is followed. An existing file at `destination` is overwritten. Raises OSError.
    """
    with open_raw(source) as original, destination.open("wb", buffering=0) as copy:
        try:
            if clone(original.fileno(), copy.fileno()):
                return
        except CannotClone:
            pass
    shutil.copyfile(source, destination)


def copy_open_file(source: io.FileIO, destination: io.BufferedRandom, hasher: Hasher) -> None:
    """Copy or clone `source` into the new, empty file `destination`, and hash the content. Raises OSError."""
    try:
        is_cloned = clone(source.fileno(), destination.fileno())
    except CannotClone:
        is_cloned = False
    if is_cloned:
        hash_into(destination, hasher)
    else:
        hash_into(source, hasher, partial(write_pieces, destination.write))


def write_pieces(write: Write, data: memoryview) -> None:
    """Write all of `data` in small pieces, because systems write small pieces faster. Raises OSError."""
    for start in range(0, len(data), _WRITE_BYTES):
        write(data[start : start + _WRITE_BYTES])

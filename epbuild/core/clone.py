"""File copies that share bytes on disk with the source (reflinks) if possible."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from epbuild.core.digest import Count, Hasher, Write, hash_into, ignore_count
from epbuild.core.safepath import open_raw

if sys.platform == "linux":
    import fcntl

# See ioctl_ficlone(2). The number is for x86 and Arm. Systems with another number return ENOTTY, and the file is copied.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

# Linux keeps the bytes of one write in contiguous memory, and virtual machines often have to request large pieces from the host.
# Writes of 1 MiB took twice as long.
_WRITE_BYTES = 64 * 1024
_SEND_BYTES = 8 << 20


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


def copy_file(source: Path, destination: Path, count: Count = ignore_count) -> None:
    """Copy `source` to `destination`, as a clone if possible. Later changes to one file do not affect the other.

    A link at `source` is followed. An existing file at `destination` is overwritten. `count` receives the size of each copied piece.
    Raises OSError.
    """
    with open_raw(source) as original, destination.open("wb") as copy:
        with suppress(CannotClone):
            if clone(original.fileno(), copy.fileno()):
                count(os.fstat(original.fileno()).st_size)
                return
        copy.truncate(0)
        if sys.platform == "linux":
            # Some file systems cannot send. The rest is then copied below, where errors are raised.
            with suppress(OSError):
                while sent := os.sendfile(copy.fileno(), original.fileno(), None, _SEND_BYTES):
                    count(sent)
        hash_into(original, Hasher(digest=False, count=count), partial(write_pieces, copy.write))


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

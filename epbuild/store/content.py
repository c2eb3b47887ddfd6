"""Bytes and their names: the SHA-256 of a stream, found while it is read, and copies that are hashed as they are made."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
from dataclasses import dataclass

if sys.platform == "linux":
    import fcntl

_BUFFER_BYTES = 1 << 20

# ioctl_ficlone(2), as numbered on x86 and Arm; where it has another number the answer is ENOTTY, and a copy is made.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

Readable = io.RawIOBase | io.BufferedIOBase


@dataclass(frozen=True)
class Blob:
    """A content: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int


def hash_stream(source: Readable) -> Blob:
    """Read `source` to its end and name what was read. Raises OSError."""
    return _read(source, None)


class Copier:
    """Copies open files and names what arrived; shares the bytes on disk (reflink) wherever the file system can."""

    def __init__(self) -> None:
        self._cannot_clone: set[tuple[int, int]] = set()

    def copy(self, source: io.FileIO, destination: io.BufferedRandom) -> Blob:
        """Fill the new, empty `destination` from `source`; what comes back describes the destination. Raises OSError."""
        if self._clone(source, destination):
            return hash_stream(destination)
        return _read(source, destination)

    def _clone(self, source: io.FileIO, destination: io.BufferedRandom) -> bool:
        if sys.platform != "linux":
            return False
        devices = (os.fstat(source.fileno()).st_dev, os.fstat(destination.fileno()).st_dev)
        if devices in self._cannot_clone:
            return False
        try:
            fcntl.ioctl(destination.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            # Any other failure is left for the copy to meet and to report.
            if error.errno in _CANNOT_CLONE:
                self._cannot_clone.add(devices)
            return False
        return True


def _read(source: Readable, destination: io.BufferedRandom | None) -> Blob:
    digest, size = hashlib.sha256(), 0
    view = memoryview(bytearray(_BUFFER_BYTES))
    while count := source.readinto(view):
        digest.update(view[:count])
        if destination is not None:
            destination.write(view[:count])
        size += count
    return Blob(digest.hexdigest(), size)

"""Bytes and their names: the SHA-256 of a stream, found while it is read, and copies that are hashed as they are made."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

if sys.platform == "linux":
    import fcntl

# Large enough that handing a buffer to another thread costs nothing beside hashing it: smaller ones were slower.
_BUFFER_BYTES = 1 << 20
_BUFFERS = 3

# Linux keeps what comes in one write in one piece of memory. In virtual machines large pieces often have to be fetched from the host
# first: writes of 1 MiB took twice as long as these.
_WRITE_BYTES = 64 * 1024

LARGE_BYTES = 8 << 20
"""From this size on, a second thread saves more than it costs."""

# ioctl_ficlone(2), as numbered on x86 and Arm; where it has another number the answer is ENOTTY, and a copy is made.
_FICLONE = 0x40049409
_CANNOT_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})

Readable = io.RawIOBase | io.BufferedIOBase

Write = Callable[[memoryview], object]
"""Takes the next bytes of a content; they are only lent."""


@dataclass(frozen=True)
class Blob:
    """A content: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int


def hash_stream(source: Readable, *, ahead: bool = True) -> Blob:
    """Read `source` to its end and name what was read; `ahead`: hash in a thread beside the one that reads. Raises OSError."""
    return _read(source, None, ahead=ahead)


def hand_on(source: Readable, write: Write) -> Blob:
    """Read `source` to its end, give every piece of at most 1 MiB to `write`, and name what was read; a thread beside it hashes.

    Raises OSError, and what `write` raises.
    """
    return _read(source, write, ahead=True)


class Copier:
    """Copies open files and names what arrived; shares the bytes on disk (reflink) wherever the file system can."""

    def __init__(self) -> None:
        self._cannot_clone: set[tuple[int, int]] = set()

    def copy(self, source: io.FileIO, destination: io.BufferedRandom) -> Blob:
        """Fill the new, empty `destination` from `source`; what comes back describes the destination. Raises OSError."""
        if self._clone(source, destination):
            return hash_stream(destination)
        return _read(source, partial(_write, destination), ahead=True)

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


def _read(source: Readable, write: Write | None, *, ahead: bool) -> Blob:
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while count := source.readinto(buffer):
        digest.update(buffer[:count])
        if write is not None:
            write(buffer[:count])
        size += count
        if ahead and size >= LARGE_BYTES:
            size += _read_ahead(source, write, digest)
            break
    return Blob(digest.hexdigest(), size)


def _read_ahead(source: Readable, write: Write | None, digest: hashlib._Hash) -> int:
    """Go on to the end, and hash each buffer while it and the next ones are written and read; returns how many bytes there were."""
    from queue import SimpleQueue
    from threading import Thread

    empty: SimpleQueue[memoryview] = SimpleQueue()
    full: SimpleQueue[tuple[memoryview, int]] = SimpleQueue()
    for _ in range(_BUFFERS):
        empty.put(memoryview(bytearray(_BUFFER_BYTES)))

    def hash_in_turn() -> None:
        while True:
            buffer, count = full.get()
            if not count:
                return
            digest.update(buffer[:count])
            empty.put(buffer)

    thread = Thread(target=hash_in_turn, name="sha256", daemon=True)
    thread.start()
    size, buffer = 0, empty.get()
    try:
        while count := source.readinto(buffer):
            full.put((buffer, count))
            if write is not None:
                write(buffer[:count])
            size += count
            buffer = empty.get()
    finally:
        full.put((buffer, 0))
        thread.join()
    return size


def _write(destination: io.BufferedRandom, data: memoryview) -> None:
    for start in range(0, len(data), _WRITE_BYTES):
        destination.write(data[start : start + _WRITE_BYTES])

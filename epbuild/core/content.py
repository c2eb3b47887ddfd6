"""Bytes and their names: what is found of a stream while it is read, and copies that are hashed as they are made."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from epbuild.core.clone import CannotClone, clone

if TYPE_CHECKING:
    from xxhash import xxh3_128

# Large enough that handing a buffer to another thread costs nothing beside hashing it: smaller ones were slower.
_BUFFER_BYTES = 1 << 20
_BUFFERS = 3

# Linux keeps what comes in one write in one piece of memory. In virtual machines large pieces often have to be fetched from the host
# first: writes of 1 MiB took twice as long as these.
_WRITE_BYTES = 64 * 1024

LARGE_BYTES = 8 << 20
"""From this size on, a second thread saves more than it costs."""

Readable = io.RawIOBase | io.BufferedIOBase

Write = Callable[[memoryview], object]
"""Takes the next bytes of a content; they are only lent."""


@dataclass(frozen=True)
class Blob:
    """A content: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int


class Reading:
    """What is found of a content while it is read: its size, and where wished its SHA-256 (`digest`) and its XXH3 of 128 bits (`checksum`).

    A checksum costs a twentieth of a digest, and says no more than that bytes are what they were.
    """

    def __init__(self, *, digest: bool = True, checksum: bool = False) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256() if digest else None
        self._xxh3 = _xxh3() if checksum else None

    @property
    def slow(self) -> bool:
        """Whether this takes so much longer than reading that a thread beside it is worth its while."""
        return self._sha256 is not None

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        self.size += len(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._xxh3 is not None:
            self._xxh3.update(data)

    @property
    def digest(self) -> str | None:
        """In hex, of what was read so far."""
        return None if self._sha256 is None else self._sha256.hexdigest()

    @property
    def checksum(self) -> str | None:
        """In hex, of what was read so far."""
        return None if self._xxh3 is None else self._xxh3.hexdigest()

    @property
    def blob(self) -> Blob:
        """The name and size of what was read so far. Raises ValueError where the digest was not wished."""
        if self._sha256 is None:
            raise ValueError("no digest was wished")
        return Blob(self._sha256.hexdigest(), self.size)


def hash_stream(source: Readable, *, ahead: bool = True) -> Blob:
    """Read `source` to its end and name what was read; `ahead`: hash in a thread beside the one that reads. Raises OSError."""
    reading = Reading()
    read(source, reading, ahead=ahead)
    return reading.blob


def read(source: Readable, reading: Reading, write: Write | None = None, *, ahead: bool = True) -> None:
    """Read `source` to its end, and give every piece of at most 1 MiB to `reading` and to `write`.

    `ahead`: where the reading is slow, it goes on in a thread beside this one. Raises OSError, and what `write` raises.
    """
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while count := source.readinto(buffer):
        reading.update(buffer[:count])
        if write is not None:
            write(buffer[:count])
        if ahead and reading.slow and reading.size >= LARGE_BYTES:
            _read_ahead(source, reading, write)
            break


class Copier:
    """Copies open files and names what arrived; shares the bytes on disk (reflink) wherever the file system can."""

    def __init__(self) -> None:
        self._cannot_clone: set[tuple[int, int]] = set()

    def copy(self, source: io.FileIO, destination: io.BufferedRandom, reading: Reading) -> None:
        """Fill the new, empty `destination` from `source`; what is found describes the destination. Raises OSError."""
        if self._clone(source, destination):
            read(destination, reading)
        else:
            read(source, reading, partial(_write, destination))

    def _clone(self, source: io.FileIO, destination: io.BufferedRandom) -> bool:
        devices = (os.fstat(source.fileno()).st_dev, os.fstat(destination.fileno()).st_dev)
        if devices in self._cannot_clone:
            return False
        try:
            return clone(source.fileno(), destination.fileno())
        except CannotClone:
            self._cannot_clone.add(devices)
            return False


def _xxh3() -> xxh3_128:
    from xxhash import xxh3_128

    return xxh3_128()


def _read_ahead(source: Readable, reading: Reading, write: Write | None) -> None:
    """Go on to the end, and hash each buffer while it and the next ones are written and read."""
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
            reading.update(buffer[:count])
            empty.put(buffer)

    thread = Thread(target=hash_in_turn, name="sha256", daemon=True)
    thread.start()
    buffer = empty.get()
    try:
        while count := source.readinto(buffer):
            full.put((buffer, count))
            if write is not None:
                write(buffer[:count])
            buffer = empty.get()
    finally:
        full.put((buffer, 0))
        thread.join()


def _write(destination: io.BufferedRandom, data: memoryview) -> None:
    for start in range(0, len(data), _WRITE_BYTES):
        destination.write(data[start : start + _WRITE_BYTES])

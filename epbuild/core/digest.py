"""Digests: the SHA-256 of text, documents, files and streams, in hex."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from epbuild.core.canonical import canonical_json
from epbuild.core.safepath import open_regular
from epbuild.core.values import dataclass

if TYPE_CHECKING:
    from xxhash import xxh3_128

_BUFFER_BYTES = 1 << 20
_FIRST_BYTES = 1 << 16

LARGE_BYTES = 8 << 20
"""From this size on, a second thread saves more than it costs."""

Readable = io.RawIOBase | io.BufferedIOBase

Write = Callable[[memoryview], object]
"""Takes the next bytes of a content; they are valid for the call."""


@dataclass(frozen=True)
class Blob:
    """A content: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int

    @property
    def identity(self) -> str:
        """What the content is, by the name that this has for content that is not written yet."""
        return self.digest


class Reading:
    """What is found of a content while it is read: its size, and where wished its SHA-256 (`digest`) and its XXH3 of 128 bits (`checksum`).

    A checksum costs a twentieth of a digest, and shows no more than that bytes are what they were.
    """

    def __init__(self, *, digest: bool = True, checksum: bool = False) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256() if digest else None
        self._xxh3 = _xxh3() if checksum else None

    @property
    def slow(self) -> bool:
        """Whether this takes so much longer than reading that a thread beside it is worth its while."""
        return self._sha256 is not None

    def update(self, data: bytes | memoryview) -> None:
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


def digest_of(data: str | bytes | memoryview) -> str:
    """The digest of bytes, or of text as UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def document_digest(document: Mapping[str, Any]) -> str:
    """The digest of a JSON document in its canonical form."""
    return digest_of(canonical_json(document))


def file_digest(path: str | Path) -> str:
    """Return the digest of a whole file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part_digest(file: BinaryIO, start: int, size: int, count: Callable[[int], object] = lambda size: None) -> Blob:
    """Return the digest of so many bytes of an open file, or of those that it has; `count` gets the size of each piece. Raises OSError."""
    reading = Reading()
    file.seek(start)
    while reading.size < size and (chunk := file.read(min(_BUFFER_BYTES, size - reading.size))):
        reading.update(chunk)
        count(len(chunk))
    return reading.blob


def hash_stream(source: Readable, write: Write | None = None, *, ahead: bool = True) -> Blob:
    """Read `source` to its end and name what was read; `write` gets every piece.

    `ahead`: hash in a thread beside the one that reads. Raises OSError, and what `write` raises.
    """
    reading = Reading()
    read(source, reading, write, ahead=ahead)
    return reading.blob


def read(source: Readable, reading: Reading, write: Write | None = None, *, ahead: bool = True) -> None:
    """Read `source` to its end, and give every piece of at most 1 MiB to `reading` and to `write`.

    `ahead`: where the reading is slow, it goes on in a thread beside this one. Raises OSError, and what `write` raises.
    """
    # Most files are small, and each larger buffer is memory that the system clears first.
    buffer = memoryview(bytearray(_FIRST_BYTES))
    while count := source.readinto(buffer):
        reading.update(buffer[:count])
        if write is not None:
            write(buffer[:count])
        if ahead and reading.slow and reading.size >= LARGE_BYTES:
            _read_ahead(source, reading, write)
            break
        if count == _FIRST_BYTES:
            buffer = memoryview(bytearray(_BUFFER_BYTES))


def _xxh3() -> xxh3_128:
    from xxhash import xxh3_128

    return xxh3_128()


def _read_ahead(source: Readable, reading: Reading, write: Write | None) -> None:
    """Go on to the end, and hash each buffer while it and the next ones are written and read."""
    from epbuild.core.ring import Ring

    with Ring(reading.update, "sha256") as ring:
        while count := source.readinto(buffer := ring.buffer()):
            ring.send(count)
            if write is not None:
                write(buffer[:count])

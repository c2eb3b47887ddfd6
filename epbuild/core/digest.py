"""SHA-256 of text, documents, files and streams, in hex."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct, msgpack, to_builtins

from epbuild.core.canonical import encode_canonical
from epbuild.core.safepath import open_regular

if TYPE_CHECKING:
    from xxhash import xxh3_128

_BUFFER_BYTES = 1 << 20
_FIRST_BYTES = 1 << 16

LARGE_BYTES = 8 << 20
"""Minimum size for which a second thread saves more than it costs."""

Readable = io.RawIOBase | io.BufferedIOBase

Write = Callable[[memoryview], object]
"""Function that accepts the next bytes of a content. They are valid for the call."""


class Blob(Struct, frozen=True):
    """Content by its SHA-256 in hex, with its size in bytes."""

    digest: str
    size: int

    @property
    def identity(self) -> str:
        """Alias of `digest`, shared with content that is not written yet."""
        return self.digest


def _as_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value))


_encoder = msgpack.Encoder(enc_hook=_as_text)


def hash_values(value: object) -> str:
    """Return a digest of values that msgspec encodes, and paths, for comparison on this machine.

    Order counts. A set with several items has no order that is the same in every process.
    """
    try:
        content = _encoder.encode(value)
    except (UnicodeError, OverflowError):  # file names that are not valid Unicode, and integers of more than 64 bits
        content = ascii(to_builtins(value, enc_hook=_as_text)).encode("ascii")
    return hashlib.blake2b(content, digest_size=20).hexdigest()


class Hasher:
    """Size of a content while it is read, and if requested its SHA-256 (`digest`) and its XXH3 of 128 bits (`checksum`), in hex.

    A checksum costs a twentieth of a digest. It detects accidental changes only.
    """

    def __init__(self, *, digest: bool = True, checksum: bool = False) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256() if digest else None
        self._xxh3 = _xxh3() if checksum else None

    @property
    def is_slow(self) -> bool:
        """Whether hashing takes long enough to deserve a thread of its own."""
        return self._sha256 is not None

    def update(self, data: bytes | memoryview) -> None:
        """Hash the next bytes."""
        self.size += len(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._xxh3 is not None:
            self._xxh3.update(data)

    @property
    def digest(self) -> str | None:
        """SHA-256 of the bytes so far."""
        return None if self._sha256 is None else self._sha256.hexdigest()

    @property
    def checksum(self) -> str | None:
        """XXH3 of the bytes so far."""
        return None if self._xxh3 is None else self._xxh3.hexdigest()

    @property
    def blob(self) -> Blob:
        """Digest and size of the bytes so far. Raises ValueError if no digest was requested."""
        if self._sha256 is None:
            raise ValueError("no digest was requested")
        return Blob(self._sha256.hexdigest(), self.size)


def hash_bytes(data: str | bytes | memoryview) -> str:
    """Return the digest of bytes, or of text as UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def hash_document(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON document in its canonical form."""
    return hash_bytes(encode_canonical(document))


def hash_file(path: str | Path) -> str:
    """Return the digest of a whole file. Raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_part(file: BinaryIO, start: int, size: int, count: Callable[[int], object] = lambda size: None) -> Blob:
    """Return the digest of `size` bytes of an open file, or up to its end. `count` gets the size of each piece. Raises OSError."""
    hasher = Hasher()
    file.seek(start)
    while hasher.size < size and (chunk := file.read(min(_BUFFER_BYTES, size - hasher.size))):
        hasher.update(chunk)
        count(len(chunk))
    return hasher.blob


def hash_stream(source: Readable, write: Write | None = None, *, ahead: bool = True) -> Blob:
    """Read `source` to its end and return its digest. `write` gets every piece.

    With `ahead`, hash large contents in a second thread. Raises OSError, and what `write` raises.
    """
    hasher = Hasher()
    hash_into(source, hasher, write, ahead=ahead)
    return hasher.blob


def hash_into(source: Readable, hasher: Hasher, write: Write | None = None, *, ahead: bool = True) -> None:
    """Read `source` to its end, and pass every piece of at most 1 MiB to `hasher` and to `write`.

    With `ahead`, a slow hasher runs in a second thread if the content is large. Raises OSError, and what `write` raises.
    """
    # Most files are small, and the system clears each larger buffer first.
    buffer = memoryview(bytearray(_FIRST_BYTES))
    while count := source.readinto(buffer):
        hasher.update(buffer[:count])
        if write is not None:
            write(buffer[:count])
        if ahead and hasher.is_slow and hasher.size >= LARGE_BYTES:
            _hash_ahead(source, hasher, write)
            break
        if count == _FIRST_BYTES:
            buffer = memoryview(bytearray(_BUFFER_BYTES))


def _xxh3() -> xxh3_128:
    from xxhash import xxh3_128

    return xxh3_128()


def _hash_ahead(source: Readable, hasher: Hasher, write: Write | None) -> None:
    """Read on to the end. Hash each buffer while it is written and the next ones are read."""
    from epbuild.core.ring import Ring

    with Ring(hasher.update, "sha256") as ring:
        while count := source.readinto(buffer := ring.buffer()):
            ring.send(count)
            if write is not None:
                write(buffer[:count])

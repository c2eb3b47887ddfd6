"""SHA-256 digests, in hex, of text, documents, files and streams."""

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
"""Minimum size at which hashing in a second thread is faster."""

Readable = io.RawIOBase | io.BufferedIOBase

Write = Callable[[memoryview], object]
"""Function that writes the next bytes of a stream. The bytes are valid only during the call."""

Count = Callable[[int], object]
"""Callback that receives the number of bytes processed since the last call. It may be called from any thread.

A negative number subtracts bytes that are processed again.
"""


def ignore_count(size: int) -> None:
    """Ignore the number of processed bytes."""


class RestartableCount:
    """Callback that passes numbers of bytes to `count`. Callers call `restart` before they process the same bytes again."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._done = 0

    def __call__(self, size: int) -> None:
        self._done += size
        self._count(size)

    def restart(self) -> None:
        """Subtract all bytes counted so far."""
        self(-self._done)


class Blob(Struct, frozen=True):
    """Reference to content: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int

    @property
    def identity(self) -> str:
        """Alias of `digest`. Other kinds of file content, such as `JsonFile`, have an `identity` but no `digest`."""
        return self.digest


def _convert_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value))


_encoder = msgpack.Encoder(enc_hook=_convert_to_text)


def hash_values(value: object) -> str:
    """Return a digest of a value, for comparison with other digests on this machine.

    The value may consist of paths and of types that msgspec encodes. The order of items matters. Do not pass sets with several
    items, because their order differs between processes.
    """
    try:
        content = _encoder.encode(value)
    except (UnicodeError, OverflowError):  # file names that are not valid Unicode, and integers of more than 64 bits
        content = ascii(to_builtins(value, enc_hook=_convert_to_text)).encode("ascii")
    return hashlib.blake2b(content, digest_size=20).hexdigest()


class Hasher:
    """Hasher that counts bytes and computes, on request, a SHA-256 (`digest`) and a 128-bit XXH3 (`checksum`), in hex.

    A checksum is 20 times faster than a digest. It detects only accidental changes. `count` receives the size of each piece.
    """

    def __init__(self, *, digest: bool = True, checksum: bool = False, count: Count = ignore_count) -> None:
        self.size = 0
        self._count = count
        self._sha256 = hashlib.sha256() if digest else None
        self._xxh3 = _create_xxh3() if checksum else None

    @property
    def is_slow(self) -> bool:
        """True if hashing is slow enough to justify a separate thread."""
        return self._sha256 is not None

    def update(self, data: bytes | memoryview) -> None:
        """Hash the next bytes."""
        self.size += len(data)
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._xxh3 is not None:
            self._xxh3.update(data)
        self._count(len(data))

    @property
    def digest(self) -> str | None:
        """SHA-256 of the bytes that were hashed so far."""
        return None if self._sha256 is None else self._sha256.hexdigest()

    @property
    def checksum(self) -> str | None:
        """XXH3 of the bytes that were hashed so far."""
        return None if self._xxh3 is None else self._xxh3.hexdigest()

    @property
    def blob(self) -> Blob:
        """Digest and size of the bytes that were hashed so far. Raises ValueError if no digest was requested."""
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


def hash_part(file: BinaryIO, start: int, size: int, count: Count = ignore_count) -> Blob:
    """Return the digest and the size of up to `size` bytes of an open file, from `start`.

    `count` is called with the size of each piece that was read. Raises OSError.
    """
    hasher = Hasher(count=count)
    file.seek(start)
    while hasher.size < size and (chunk := file.read(min(_BUFFER_BYTES, size - hasher.size))):
        hasher.update(chunk)
    return hasher.blob


def hash_stream(source: Readable, count: Count = ignore_count, *, ahead: bool = True) -> Blob:
    """Read `source` to its end and return its digest. `count` receives the size of each piece.

    If `ahead` is True, large content is hashed in a second thread. Raises OSError.
    """
    hasher = Hasher(count=count)
    hash_into(source, hasher, ahead=ahead)
    return hasher.blob


def hash_into(source: Readable, hasher: Hasher, write: Write | None = None, *, ahead: bool = True) -> None:
    """Read `source` to its end, and pass every piece of at most 1 MiB to `hasher` and to `write`.

    If `ahead` is True, a slow hasher processes large content in a second thread. Raises OSError and the errors of `write`.
    """
    # The first buffer is small, because most files are small and the system has to clear a buffer before its use.
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


def _create_xxh3() -> xxh3_128:
    from xxhash import xxh3_128

    return xxh3_128()


def _hash_ahead(source: Readable, hasher: Hasher, write: Write | None) -> None:
    """Read the rest of `source`. Hash each buffer in a second thread, while it is being written and the next buffers are being read."""
    from epbuild.core.ring import Ring

    with Ring(hasher.update, "sha256") as ring:
        while count := source.readinto(buffer := ring.buffer()):
            ring.send(count)
            if write is not None:
                write(buffer[:count])

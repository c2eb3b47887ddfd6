"""Format of encrypted files: AES-256-GCM in chunks, with a key per file.

An encrypted file has a header and at least one chunk. Integers are big-endian:

    magic 8 | key check 8 | SHA-256 of the content 32 | size of the content 8 | length of the name 2 | name in UTF-8
    chunk 0 | chunk 1 | ...

A chunk has up to 64 KiB of content and a tag of 16 bytes. All chunks but the last one are full. The last byte of the magic is the version
of the format. The name is the file's POSIX path below the folder of its manifest.

The key of a file is HMAC-SHA256(key, "epbuild file key 1" | header), and the nonce of a chunk is its index, as 12 bytes. Files with one
file key have the same content, because the header contains its SHA-256. So no nonce is used for two contents, and equal inputs give equal
bytes. A changed header leads to another file key, so decryption fails. The size in the header determines the number of chunks, so missing
and additional chunks are detected. The key check distinguishes a wrong key from a damaged file. It does not reveal the key.
"""

from __future__ import annotations

import base64
import hmac
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

KEY_BYTES = 32
MAGIC = b"\x07epbenc\x01"  # no protobuf message begins with this byte, so no reader accepts an encrypted file as a model
MAX_NAME_BYTES = 4096
CHUNK_BYTES = 1 << 16
_TAG_BYTES = 16
_HEADER = struct.Struct(">8s8s32sQH")
_NONCE_BYTES = 12
_DIGEST = "sha256"
_CHECK_LABEL = b"epbuild key check 1"
_FILE_LABEL = b"epbuild file key 1"


class EncryptionError(Exception):
    """Error for a file that cannot be decrypted, or for an invalid key. The text completes a sentence that begins with its subject."""


class Header(NamedTuple):
    """Readable part of an encrypted file: the name, size and SHA-256 of its content, and a check value of its key."""

    name: str
    size: int
    sha256: str
    check: bytes

    @property
    def encoded(self) -> bytes:
        name = self.name.encode()
        return _HEADER.pack(MAGIC, self.check, bytes.fromhex(self.sha256), self.size, len(name)) + name

    @property
    def file_size(self) -> int:
        """Size of the encrypted file."""
        return len(self.encoded) + self.size + _TAG_BYTES * self.chunks

    @property
    def chunks(self) -> int:
        return max(1, -(-self.size // CHUNK_BYTES))


def parse_key(text: str) -> bytes:
    """Return a key from its text: 32 bytes in hex or in Base64. Raises EncryptionError, which does not quote the text."""
    text = text.strip()
    try:
        return check_key(bytes.fromhex(text))
    except ValueError:  # 32 bytes in Base64 end with `=`, which is no hex digit
        pass
    try:
        return check_key(base64.b64decode(text, validate=True))
    except ValueError:
        raise EncryptionError("is neither hex nor Base64") from None


def check_key(key: bytes) -> bytes:
    """Return a key. Raises EncryptionError if its length is wrong."""
    if len(key) != KEY_BYTES:
        raise EncryptionError(f"has {len(key)} bytes, but a key has {KEY_BYTES}")
    return key


def make_header(key: bytes, name: str, size: int, sha256: str) -> Header:
    """Return the header for a file with the given name, size and SHA-256."""
    return Header(name, size, sha256, _compute_check(key))


class Encryptor:
    """Writer of an encrypted file. Pass the pieces of the content to `add`, in order and of any size, and then call `finish`."""

    def __init__(self, header: Header, key: bytes, write: Callable[[bytes], object]) -> None:
        self._header = header
        self._cipher = _make_cipher(header, key)
        self._write = write
        self._buffer = bytearray()
        self._chunks = 0
        write(header.encoded)

    def add(self, piece: bytes | memoryview) -> None:
        """Encrypt the next piece of the content."""
        self._buffer.extend(piece)
        start = 0
        while len(self._buffer) - start > CHUNK_BYTES:  # the last chunk is kept for the end
            self._write_chunk(bytes(self._buffer[start : start + CHUNK_BYTES]))
            start += CHUNK_BYTES
        del self._buffer[:start]

    def finish(self) -> None:
        """Write the last chunk. Raises EncryptionError if the content does not have the header's size."""
        found = self._chunks * CHUNK_BYTES + len(self._buffer)
        self._write_chunk(bytes(self._buffer))
        if found != self._header.size:
            raise EncryptionError(f"has {found} bytes of content instead of {self._header.size}")

    def _write_chunk(self, content: bytes) -> None:
        self._write(self._cipher.encrypt(_make_nonce(self._chunks), content, None))
        self._chunks += 1


def read_header(file: BinaryIO) -> Header | None:
    """Read the header of an encrypted file, and check the size of the file. Return None if the file is not encrypted.

    Do not trust the header until a chunk has been decrypted. Raises EncryptionError and OSError.
    """
    fixed = file.read(_HEADER.size)
    if fixed[: len(MAGIC) - 1] != MAGIC[:-1]:
        return None
    if fixed[len(MAGIC) - 1 : len(MAGIC)] != MAGIC[-1:]:
        raise EncryptionError("has an unknown format; use a newer epbuild")
    if len(fixed) < _HEADER.size:
        raise EncryptionError("is truncated")
    _, check, digest, size, length = _HEADER.unpack(fixed)
    name = file.read(min(length, MAX_NAME_BYTES))
    try:
        header = Header(name.decode(), size, digest.hex(), check)
    except UnicodeDecodeError:
        raise EncryptionError("is damaged") from None
    if len(name) != length:
        raise EncryptionError("is damaged")
    start = file.tell()
    found = file.seek(0, 2)
    file.seek(start)
    if found != header.file_size:
        raise EncryptionError(f"has {found} bytes instead of {header.file_size}")
    return header


def decrypt(file: BinaryIO, key: bytes, name: str, sha256: str) -> tuple[Header, Iterator[bytes]]:
    """Return the header of an encrypted file, and an iterator of its content in pieces. Each piece is authentic.

    `name` and `sha256` are those that the manifest lists for the content. Raises EncryptionError and OSError,
    also while the pieces are read.
    """
    header = read_header(file)
    if header is None:
        raise EncryptionError("is not encrypted")
    if not hmac.compare_digest(header.check, _compute_check(key)):
        raise EncryptionError("was encrypted with another key")
    if header.name != name:
        raise EncryptionError(f"was encrypted under another name, {header.name!r}")
    if header.sha256 != sha256:
        raise EncryptionError("has another content than the manifest lists")
    return header, _decrypt_chunks(file, header, _make_cipher(header, key))


def _decrypt_chunks(file: BinaryIO, header: Header, cipher: Any) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag

    for index in range(header.chunks):
        size = min(CHUNK_BYTES, header.size - index * CHUNK_BYTES) + _TAG_BYTES
        try:
            yield cipher.decrypt(_make_nonce(index), file.read(size), None)
        except (InvalidTag, ValueError):  # ValueError, because the file became shorter than a tag
            raise EncryptionError("is damaged") from None


def check_library() -> None:
    """Raise EncryptionError if the package cryptography is missing."""
    _import_cipher()


def _import_cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise EncryptionError("needs the package cryptography, which is not installed") from None
    return AESGCM


def _make_cipher(header: Header, key: bytes) -> Any:
    return _import_cipher()(hmac.digest(check_key(key), _FILE_LABEL + header.encoded, _DIGEST))


def _compute_check(key: bytes) -> bytes:
    return hmac.digest(check_key(key), _CHECK_LABEL, _DIGEST)[:8]


def _make_nonce(index: int) -> bytes:
    return index.to_bytes(_NONCE_BYTES, "big")

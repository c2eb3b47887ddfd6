"""`ReapiResult`: the Remote Execution API's `ActionResult` as bytes.

Records have this form in a remote cache, so that servers know their files: they refuse a record whose files are missing, and drop records
with their files. Only the fields of records are read and written. Unknown fields are skipped, since servers add some. Malformed bytes are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from epbuild.core.digest import Blob

_VARINT, _LENGTH = 0, 2  # wire types
_FIXED_BYTES = {1: 8, 5: 4}
_FILES, _STDOUT, _STDERR_DIGEST, _METADATA = 2, 5, 8, 9  # of ActionResult
_PATH, _DIGEST, _EXECUTABLE = 1, 2, 4  # of OutputFile
_HASH, _SIZE = 1, 2  # of Digest
_WORKER = 1  # of ExecutedActionMetadata

_HEX = re.compile(rb"[0-9a-f]{64}")
_MAX_VARINT_BYTES = 10
_UINT64 = (1 << 64) - 1
_MAX_SIZE = (1 << 63) - 1


class MalformedMessage(ValueError):
    """Malformed message."""


class ReapiFile(Struct, frozen=True):
    """Output file: its path, and its blob in the cache."""

    path: str
    blob: Blob
    is_executable: bool = False


class ReapiResult(Struct, frozen=True):
    """Fields of the message that records use: files, standard streams and worker."""

    files: Sequence[ReapiFile]
    stdout: bytes
    stderr: Blob | None = None
    worker: str = ""

    def encode(self) -> bytes:
        """Return the message, its fields in the order of their numbers."""
        files = b"".join(_field(_FILES, _file_message(file)) for file in self.files)
        stderr = b"" if self.stderr is None else _field(_STDERR_DIGEST, _digest_message(self.stderr))
        metadata = _field(_METADATA, _text(_WORKER, self.worker)) if self.worker else b""
        stdout = _field(_STDOUT, self.stdout) if self.stdout else b""
        return files + stdout + stderr + metadata

    @classmethod
    def decode(cls, data: bytes) -> ReapiResult:
        """Return the message in bytes. Raises MalformedMessage."""
        files: list[ReapiFile] = []
        stdout, worker, stderr = b"", "", None
        for number, value in _fields(data):
            if not isinstance(value, bytes):
                continue
            if number == _FILES:
                files.append(_read_file(value))
            elif number == _STDOUT:
                stdout = value
            elif number == _STDERR_DIGEST:
                stderr = _read_digest(value)
            elif number == _METADATA:
                name = dict(_fields(value)).get(_WORKER, b"")
                worker = _utf8(name) if isinstance(name, bytes) else ""
        return cls(tuple(files), stdout, stderr, worker)


def _file_message(file: ReapiFile) -> bytes:
    executable = _varint(_EXECUTABLE << 3 | _VARINT) + b"\1" if file.is_executable else b""
    return _text(_PATH, file.path) + _field(_DIGEST, _digest_message(file.blob)) + executable


def _digest_message(blob: Blob) -> bytes:
    size = _varint(_SIZE << 3 | _VARINT) + _varint(blob.size) if blob.size else b""
    return _text(_HASH, blob.digest) + size


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_file(data: bytes) -> ReapiFile:
    fields = dict(_fields(data))  # the last of repeated fields counts
    path, blob = fields.get(_PATH, b""), fields.get(_DIGEST)
    if not isinstance(path, bytes) or not isinstance(blob, bytes):
        raise MalformedMessage("an output file has no digest")
    return ReapiFile(_utf8(path), _read_digest(blob), fields.get(_EXECUTABLE, 0) not in (0, b""))


def _read_digest(data: bytes) -> Blob:
    fields = dict(_fields(data))
    digest, size = fields.get(_HASH), fields.get(_SIZE, 0)
    if not isinstance(digest, bytes) or not isinstance(size, int) or size > _MAX_SIZE or not _HEX.fullmatch(digest):
        raise MalformedMessage("not a SHA-256 with a size")
    return Blob(digest.decode("ascii"), size)


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage("a text is not UTF-8") from error


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field's number and value; fixed-size values as bytes. Raises MalformedMessage for a field that exceeds `data`."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, form = tag >> 3, tag & 7
        if not number or tag >> 32:
            raise MalformedMessage("invalid field number")
        if form == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if form == _LENGTH:
            size, at = _read_varint(data, at)
        elif form in _FIXED_BYTES:
            size = _FIXED_BYTES[form]
        else:
            raise MalformedMessage("unknown wire type")
        if size > len(data) - at:
            raise MalformedMessage("a field goes beyond the end")
        yield number, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # nearly all numbers are that short
        return data[at], at + 1
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise MalformedMessage("a number goes beyond the end")
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value > _UINT64:
                break
            return value, at + index + 1
    raise MalformedMessage("a number has more than 64 bits")

"""`ReapiResult`: encodes and decodes the Remote Execution API's `ActionResult`.

Records are stored in this form in a remote cache, so that servers know which files belong to a record. Servers refuse a record whose files
are missing, and delete records together with their files. Only the fields that records use are read and written. Unknown fields are
skipped, since servers add some. Malformed bytes are rejected.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from epbuild.core.digest import Blob
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer

_FILES, _STDOUT, _STDERR_DIGEST, _METADATA = 2, 5, 8, 9  # field numbers of ActionResult
_PATH, _DIGEST, _EXECUTABLE = 1, 2, 4  # field numbers of OutputFile
_HASH, _SIZE = 1, 2  # field numbers of Digest
_WORKER = 1  # field number of ExecutedActionMetadata

_HEX = re.compile(rb"[0-9a-f]{64}")
_MAX_VARINT = 10  # bytes


class MalformedMessage(ValueError):
    """Malformed message of the Remote Execution API."""


class ReapiFile(Struct, frozen=True):
    """Output file in an `ActionResult`: its path, and its blob in the cache."""

    path: str
    blob: Blob
    is_executable: bool = False


class ReapiResult(Struct, frozen=True):
    """Fields of an `ActionResult` that records use: files, standard streams and worker."""

    files: Sequence[ReapiFile]
    stdout: bytes
    stderr: Blob | None = None
    worker: str = ""

    def encode(self) -> bytes:
        """Return the message as bytes, with fields in the order of their numbers."""
        files = b"".join(encode_bytes(_FILES, _encode_file(file)) for file in self.files)
        stderr = b"" if self.stderr is None else encode_bytes(_STDERR_DIGEST, _encode_digest(self.stderr))
        metadata = encode_bytes(_METADATA, _encode_text(_WORKER, self.worker)) if self.worker else b""
        stdout = encode_bytes(_STDOUT, self.stdout) if self.stdout else b""
        return files + stdout + stderr + metadata

    @classmethod
    def decode(cls, data: bytes) -> ReapiResult:
        """Parse the bytes of a message. Raises MalformedMessage."""
        files: list[ReapiFile] = []
        stdout, worker, stderr = b"", "", None
        for number, value in _read_fields(data):
            if not isinstance(value, bytes):
                continue
            if number == _FILES:
                files.append(_read_file(value))
            elif number == _STDOUT:
                stdout = value
            elif number == _STDERR_DIGEST:
                stderr = _read_digest(value)
            elif number == _METADATA:
                name = dict(_read_fields(value)).get(_WORKER, b"")
                worker = _decode_text(name) if isinstance(name, bytes) else ""
        return cls(tuple(files), stdout, stderr, worker)


def _encode_file(file: ReapiFile) -> bytes:
    executable = encode_integer(_EXECUTABLE, 1) if file.is_executable else b""
    return _encode_text(_PATH, file.path) + encode_bytes(_DIGEST, _encode_digest(file.blob)) + executable


def _encode_digest(blob: Blob) -> bytes:
    size = encode_integer(_SIZE, blob.size) if blob.size else b""
    return _encode_text(_HASH, blob.digest) + size


def _encode_text(number: int, text: str) -> bytes:
    return encode_bytes(number, text.encode()) if text else b""


def _read_file(data: bytes) -> ReapiFile:
    fields = dict(_read_fields(data))  # of repeated fields, the last one counts
    path, blob = fields.get(_PATH, b""), fields.get(_DIGEST)
    if not isinstance(path, bytes) or not isinstance(blob, bytes):
        raise MalformedMessage("an output file has no digest")
    return ReapiFile(_decode_text(path), _read_digest(blob), fields.get(_EXECUTABLE, 0) not in (0, b""))


def _read_digest(data: bytes) -> Blob:
    fields = dict(_read_fields(data))
    digest, size = fields.get(_HASH), fields.get(_SIZE, 0)
    if not isinstance(digest, bytes) or not isinstance(size, int) or size < 0 or not _HEX.fullmatch(digest):
        raise MalformedMessage("a digest is not a SHA-256 with a size")
    return Blob(digest.decode("ascii"), size)


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage("a string is not valid UTF-8") from error


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field. Fixed-size values are bytes. Raises MalformedMessage."""
    try:
        for field in WireReader(io.BytesIO(data)).fields(0, len(data)):
            if field.end - field.tag_at > _MAX_VARINT and _is_too_large(data, field):
                raise MalformedMessage("a number has more than 64 bits")
            yield field.number, data[field.start : field.end] if field.value is None else field.value
    except MalformedModel as error:
        raise MalformedMessage(str(error)) from error


def _is_too_large(data: bytes, field: Field) -> bool:
    """Return whether a number in a field has more than 64 bits. `WireReader` drops the excess bits, but some servers refuse the message."""
    content = data[field.start : field.end] if field.value is not None else b""
    numbers = (data[field.tag_at : field.length_at], data[field.length_at : field.start], content)
    return any(len(number) == _MAX_VARINT and number[-1] > 1 for number in numbers)

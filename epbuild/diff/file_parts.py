"""Named parts of files: parts of ONNX models, and members of archives."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.places import find_model_parts
from epbuild.onnxfile.read.wire import MalformedModel

_CONTEXT = "attribute ep_cache_context"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # Header of a ZIP member: signature, lengths of name and extra field.
_LOCAL_SIGNATURE = b"PK\x03\x04"
_MIN_ARCHIVE_BYTES = 1 << 10  # Shorter contexts are file names.
_MAX_MEMBERS = 10_000


class FilePart(Struct, frozen=True):
    """Part of a file, with a title for users. The title is empty for bytes between named parts."""

    title: str
    bytes: Payload


def split_file(path: Path) -> tuple[FilePart, ...]:
    """Return the parts of a file, in order and without overlap. A file of unknown format is a single part. Raises OSError."""
    whole = Payload.whole(path)
    if path.suffix == ".onnx":
        try:
            places = find_model_parts(path)
        except MalformedModel:
            return (FilePart("", whole),)
        parts: list[FilePart] = []
        for place in places:
            part = FilePart(place.title, Payload(path, place.start, place.size))
            parts += _split_archive(part) if place.title.endswith(_CONTEXT) else [part]
        return tuple(parts)
    return tuple(_split_archive(FilePart("", whole)))


def fill_gaps(path: Path, parts: tuple[FilePart, ...]) -> tuple[FilePart, ...]:
    """Return the parts, with untitled parts for the gaps between them. Gaps contain tags, lengths, headers and alignment."""
    filled: list[FilePart] = []
    position = 0
    for part in parts:
        if part.bytes.start > position:
            filled.append(FilePart("", Payload(path, position, part.bytes.start - position)))
        filled.append(part)
        position = part.bytes.start + part.bytes.size
    size = path.stat().st_size
    if size > position:
        filled.append(FilePart("", Payload(path, position, size - position)))
    return tuple(filled)


def _split_archive(part: FilePart) -> Iterator[FilePart]:
    """Yield the members of a part that is a ZIP file, or else the part itself. Some contexts for several SoCs are ZIP files."""
    try:
        members = list(_find_members(part.bytes))
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, OSError):
        members = []  # If the file is unreadable, the later comparison of its bytes raises the error.
    if not members:
        yield part
        return
    prefix = f"{part.title}, " if part.title else ""
    for name, payload in members:
        yield FilePart(f"{prefix}member {name}", payload)


def _find_members(payload: Payload) -> Iterator[tuple[str, Payload]]:
    """Yield the name and the bytes of each member of a ZIP file. Raises BadZipFile if members overlap."""
    if payload.size < _MIN_ARCHIVE_BYTES:
        return
    end = payload.start
    with _Window(payload) as window:
        if not zipfile.is_zipfile(window):
            return
        with zipfile.ZipFile(window) as archive:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        if len(infos) > _MAX_MEMBERS:
            return
        for info in infos:
            window.seek(info.header_offset)
            signature, name_size, extra_size = _LOCAL_HEADER.unpack(window.read(_LOCAL_HEADER.size))
            start = payload.start + info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
            if signature != _LOCAL_SIGNATURE or start < end or start + info.compress_size > payload.start + payload.size:
                raise zipfile.BadZipFile("its members overlap")
            end = start + info.compress_size
            yield info.filename, Payload(payload.path, start, info.compress_size)


class _Window(io.RawIOBase):
    """Read-only file object over a payload."""

    def __init__(self, payload: Payload) -> None:
        self._file = open_regular(payload.path)
        self._payload = payload
        self._position = 0

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._payload.size}[whence]
        if base + offset < 0:
            raise OSError(22, "negative seek position")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._payload.size - self._position)
        self._file.seek(self._payload.start + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data

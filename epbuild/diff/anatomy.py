"""Named parts of a file: parts of an ONNX model, and members of an archive."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from epbuild.core.safepath import open_regular
from epbuild.onnxfile.read.places import model_places
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.verify.payload import Payload

_CONTEXT = "attribute ep_cache_context"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a ZIP member: its signature, and the lengths of its name and its extra field
_LOCAL_SIGNATURE = b"PK\x03\x04"
_MIN_ARCHIVE_BYTES = 1 << 10  # a shorter context is the name of a file
_MAX_MEMBERS = 10_000


class FilePart(Struct, frozen=True):
    """Part of a file with a title for users; bytes between the named parts have no title."""

    title: str
    bytes: Payload


def split_file(path: Path) -> tuple[FilePart, ...]:
    """Return the parts of a file, in order and without overlap. A file of unknown format is one part. Raises OSError."""
    whole = Payload.whole(path)
    if path.suffix == ".onnx":
        try:
            places = model_places(path)
        except MalformedModel:
            return (FilePart("", whole),)
        found = (FilePart(place.title, Payload(path, place.start, place.size)) for place in places)
        return tuple(inner for part in found for inner in (_members(part) if part.title.endswith(_CONTEXT) else (part,)))
    return tuple(_members(FilePart("", whole)))


def fill_gaps(path: Path, found: tuple[FilePart, ...]) -> tuple[FilePart, ...]:
    """Fill the gaps between parts with parts without a title: tags, lengths, headers, alignment."""
    filled: list[FilePart] = []
    at = 0
    for part in (*found, FilePart("", Payload(path, path.stat().st_size, 0))):
        if part.bytes.start > at:
            filled.append(FilePart("", Payload(path, at, part.bytes.start - at)))
        filled.append(part)
        at = part.bytes.start + part.bytes.size
    return tuple(filled[:-1])


def _members(part: FilePart) -> Iterator[FilePart]:
    """Return the members of a part that is a ZIP file, as some contexts for several SoCs are; else the part itself."""
    try:
        members = list(_archive(part.bytes))
    except (zipfile.BadZipFile, struct.error, ValueError, EOFError, NotImplementedError, OSError):
        members = []  # a file that cannot be read raises an error when its bytes are compared
    if not members:
        yield part
        return
    before = f"{part.title}, " if part.title else ""
    for name, payload in members:
        yield FilePart(f"{before}member {name}", payload)


def _archive(payload: Payload) -> Iterator[tuple[str, Payload]]:
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
            signature, name, extra = _LOCAL_HEADER.unpack(window.read(_LOCAL_HEADER.size))
            start = payload.start + info.header_offset + _LOCAL_HEADER.size + name + extra
            if signature != _LOCAL_SIGNATURE or start < end or start + info.compress_size > payload.start + payload.size:
                raise zipfile.BadZipFile("its members overlap")
            end = start + info.compress_size
            yield info.filename, Payload(payload.path, start, info.compress_size)


class _Window(io.RawIOBase):
    """Payload as a readable file."""

    def __init__(self, payload: Payload) -> None:
        self._file = open_regular(payload.path)
        self._payload = payload
        self._at = 0

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._payload.size}[whence]
        if base + offset < 0:
            raise OSError(22, "negative seek position")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._payload.size - self._at)
        self._file.seek(self._payload.start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data

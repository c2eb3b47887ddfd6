"""Reader and reproducible writer of tar archives compressed with zstd.

The bytes of an archive depend only on its files. The format is USTAR, with a pax header only if a name or a size needs one. The writer
implements POSIX.1-2017 (pax). It does not use `tarfile`, whose bytes differ between versions of Python.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

from epbuild.archive import zstd
from epbuild.archive.artifact import Artifact, Copy
from epbuild.archive.members import Members, make_corrupt_error, make_unsafe_error, quote_member
from epbuild.core.digest import Write
from epbuild.core.errors import StepId
from epbuild.core.ring import Ring
from epbuild.core.safepath import open_regular

MARKS: tuple[bytes, ...] = (zstd.MARK,)
"""Magic numbers of compressed tar archives."""

_HEAD_BYTES = 1 << 16  # compressed bytes that suffice for a manifest
_BLOCK_BYTES = 512
_RECORD_BYTES = 20 * _BLOCK_BYTES
_HEADER = Struct("100s 8s 8s 8s 12s 12s 8s c 100s 8s 32s 32s 8s 8s 155s 12x")
_NAME_BYTES, _PREFIX_BYTES = 100, 155
_LARGE = 1 << 33  # the smallest size with too many octal digits for its field
_NO_SUM = b" " * 8
_USTAR = b"ustar\x0000"
_FILE, _PAX = b"0", b"x"
_PAX_NAME = b"././@PaxHeader"

_PIECE_BYTES = 1 << 18
# Limit on the total size of a member's headers. `tarfile` itself does not limit their size and number.
_MAX_HEADER_BYTES = 1 << 20
_END = b"the end of what was compressed"
_READ_ERRORS = (tarfile.TarError, EOFError, ValueError, LookupError, OverflowError, RecursionError)


def write(artifacts: Sequence[Artifact], copy: Copy, put: Write, level: int | None, step: StepId | None) -> None:
    """Write a compressed tar archive of `artifacts` in the given order, by calls of `put`. `level` is the zstd level (None: the default).

    Raises errors of `copy` and `put`, and EnvironmentFailure if the zstd package is missing.
    """
    compressor = zstd.make_compressor(level, step).compressobj()
    with Ring(lambda piece: put(compressor.compress(piece)), "zstd") as stage:
        write_tar(artifacts, copy, stage.put)
    put(compressor.flush())


def write_tar(artifacts: Sequence[Artifact], copy: Copy, put: Write) -> None:
    """Write an uncompressed tar archive of `artifacts` in the given order, by calls of `put`. Raises errors of `copy` and `put`."""
    written = 0
    for artifact in artifacts:
        head, padding = _build_headers(artifact.path, artifact.size), bytes(-artifact.size % _BLOCK_BYTES)
        put(memoryview(head))
        copy(artifact, put)
        put(memoryview(padding))
        written += len(head) + artifact.size + len(padding)
    end = 2 * _BLOCK_BYTES
    put(memoryview(bytes(end + -(written + end) % _RECORD_BYTES)))


def read_first_members(file: BinaryIO, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the name and content of the first members, until one was not written by `write`.

    The last content is None if it has more than `max_bytes` bytes or is truncated. Raises OSError, and EnvironmentFailure if the zstd
    package is missing.
    """
    package = zstd.import_zstandard()
    stream = package.ZstdDecompressor().stream_reader(file, read_size=_HEAD_BYTES)
    try:
        while True:
            member = tarfile.TarInfo.frombuf(_read_exactly(stream, _BLOCK_BYTES), "utf-8", "replace")
            if member.type != tarfile.REGTYPE or member.size < 0:
                return
            data = _read_exactly(stream, member.size) if member.size <= max_bytes else b""
            if len(data) < member.size:
                yield member.name, None
                return
            yield member.name, data
            _read_exactly(stream, -member.size % _BLOCK_BYTES)
    except (tarfile.HeaderError, package.ZstdError):
        return


def _build_headers(path: str, size: int) -> bytes:
    """Return the headers of a member as bytes."""
    name, prefix = _split_path(path)
    fields = {
        **({"path": path} if name is None else {}),
        **({"size": str(size)} if size >= _LARGE else {}),
    }
    mangled = path.encode("ascii", "replace")[:_NAME_BYTES] if name is None else name
    plain = _pack_header(mangled, prefix, size if size < _LARGE else 0, _FILE)
    if not fields:
        return plain
    records = b"".join(_build_record(key, value) for key, value in fields.items())
    return _pack_header(_PAX_NAME, b"", len(records), _PAX) + records + bytes(-len(records) % _BLOCK_BYTES) + plain


def _pack_header(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    fields = [
        name,
        _format_octal(0o644, 8),
        _format_octal(0, 8),
        _format_octal(0, 8),
        _format_octal(size, 12),
        _format_octal(0, 12),
        _NO_SUM,
        kind,
        b"",
        _USTAR,
        b"",
        b"",
    ]
    blank = _HEADER.pack(*fields, _format_octal(0, 8), _format_octal(0, 8), prefix)
    fields[6] = b"%06o\0 " % _compute_checksum(blank)
    return _HEADER.pack(*fields, _format_octal(0, 8), _format_octal(0, 8), prefix)


def _split_path(path: str) -> tuple[bytes | None, bytes]:
    """Split a path at a slash into USTAR's name and prefix. The name is None if the path is too long or not ASCII."""
    if not path.isascii():
        return None, b""
    name = path.encode()
    if len(name) <= _NAME_BYTES:
        return name, b""
    at = name.find(b"/", max(len(name) - _NAME_BYTES - 1, 1))
    return (name[at + 1 :], name[:at]) if 0 < at <= _PREFIX_BYTES and at < len(name) - 1 else (None, b"")


def _build_record(key: str, value: str) -> bytes:
    """Return a pax record. A record begins with its own length in bytes, which includes the digits of the length."""
    rest = f" {key}={value}\n".encode()
    size = len(rest)
    while size != len(rest) + len(str(size)):
        size = len(rest) + len(str(size))
    return str(size).encode() + rest


def _format_octal(number: int, room: int) -> bytes:
    return b"%0*o\0" % (room - 1, number)


def _compute_checksum(header: bytes) -> int:
    """Return the checksum of a header. The bytes of the checksum field count as spaces."""
    return sum(header[:148]) + sum(_NO_SUM) + sum(header[156:])


def _read_exactly(source: BinaryIO, size: int) -> bytes:
    pieces, left = [], size
    while left and (piece := source.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def unpack(path: Path, members: Members) -> None:
    """Write every member of the archive to `members`.

    Raises UnsoundArchive, CannotUnpack, OSError if the archive cannot be read, and EnvironmentFailure if the zstd package is missing.
    """
    with open_regular(path) as file:
        _unpack_stream(file, members)


def _unpack_stream(file: BinaryIO, members: Members) -> None:
    package = zstd.import_zstandard()
    # The end of a truncated stream looks like a normal end. So a frame is appended here, which can be decompressed only after a complete
    # stream.
    end = package.ZstdCompressor(write_checksum=True).compress(_END)
    reader = package.ZstdDecompressor().stream_reader(_Followed(file, end), read_size=_PIECE_BYTES, read_across_frames=True)
    stream = _Forward(reader)
    start = "its beginning"
    try:
        archive = tarfile.TarFile(fileobj=stream, mode="r", encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            # Otherwise, `tarfile` keeps every header that it has read.
            archive.members = []  # type: ignore[attr-defined]
            archive.pax_headers = {}
            stream.headers = 0
            start = f"the member {quote_member(member.name)}"
            _unpack_member(member, stream, members)
        _check_end(stream, members.title)
    except package.ZstdError as error:
        raise make_corrupt_error(
            members.title, f"the archive cannot be decompressed from {start} onward: {zstd.extract_reason(error)}"
        ) from error
    except _READ_ERRORS as error:
        raise make_corrupt_error(members.title, f"the tar archive cannot be read from {start} onward: {error}") from error


def _unpack_member(member: tarfile.TarInfo, stream: _Forward, members: Members) -> None:
    name = member.name
    if member.isdir():
        members.names.add_folder(name)
        return
    if member.issym() or member.islnk():
        raise make_unsafe_error(members.title, name, "is a link")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or member.size < 0:
        raise make_unsafe_error(members.title, name, "is neither a plain file nor a folder")
    members.write(name, member.size, stream.read_pieces(member.size))


def _check_end(stream: _Forward, title: str) -> None:
    """Check that the archive ends in zeros, since `tarfile` accepts any block that is not a header as the end."""
    ended = stream.last == bytes(_BLOCK_BYTES)
    rest = b""
    for piece in stream.read_pieces(sys.maxsize):
        rest += piece
        body, rest = rest[: -len(_END)], rest[-len(_END) :]
        ended = ended and not body.strip(b"\0")
    if not ended or rest != _END:
        raise make_corrupt_error(title, "the archive is truncated, or contains data after its end")


class _Followed:
    """Readable concatenation of a file and some bytes."""

    def __init__(self, file: BinaryIO, rest: bytes) -> None:
        self._file = file
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        if not piece and size:
            piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


class _Forward:
    """Stream with the methods that `tarfile` needs. It seeks only forward, and limits the size of headers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at = 0
        self.last = b""
        """Bytes of the header data that was read last."""
        self.headers = 0
        """Number of header bytes read for the current member so far."""

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> int:
        if place < self._at:
            raise tarfile.ReadError("members overlap")
        for _ in self.read_pieces(place - self._at):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        """Read `size` bytes of a header, or fewer at the end."""
        self.headers += abs(size)
        if size < 0 or self.headers > _MAX_HEADER_BYTES:
            raise tarfile.ReadError("the headers of a member are too large")
        self.last = b"".join(self.read_pieces(size))
        return self.last

    def read_pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in pieces, or fewer bytes at the end."""
        while size and (piece := self._stream.read(min(size, _PIECE_BYTES))):
            size -= len(piece)
            self._at += len(piece)
            yield piece

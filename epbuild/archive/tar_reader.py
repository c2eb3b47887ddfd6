"""Reads tar archives that zstd has compressed, front to back and in constant memory."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from epbuild.archive.members import Members
from epbuild.archive.packs import zstandard_package
from epbuild.archive.refusal import damaged, harmful, quoted

_PIECE_BYTES = 1 << 18
_BLOCK_BYTES = 512
# All headers of a member: names and a few numbers. `tarfile` would read one of any size at once, and any number of them.
_MOST_HEADER_BYTES = 1 << 20
_END = b"the end of what was compressed"
_WRONG = (tarfile.TarError, EOFError, ValueError, LookupError, OverflowError, RecursionError)


def unpack_tar(file: BinaryIO, members: Members) -> None:
    """Give every member of the archive to `members`.

    Raises UnsoundArchive, CannotUnpack, OSError where it cannot be read, and EnvironmentFailure when the package for zstd is missing.
    """
    package = zstandard_package()
    # A stream that is cut short looks like one that has ended. What follows it comes out whole only if it did end.
    end = package.ZstdCompressor(write_checksum=True).compress(_END)
    reader = package.ZstdDecompressor().stream_reader(_Followed(file, end), read_size=_PIECE_BYTES, read_across_frames=True)
    stream = _Forward(reader)
    start = "its beginning"
    try:
        archive = tarfile.TarFile(fileobj=stream, mode="r", encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
        while (member := archive.next()) is not None:
            # It keeps all that it has read of them.
            archive.members = []  # type: ignore[attr-defined]
            archive.pax_headers = {}
            stream.headers = 0
            start = f"the member {quoted(member.name)}"
            _unpack(member, stream, members)
        _check_end(stream, members.title)
    except package.ZstdError as error:
        raise damaged(members.title, f"it cannot be decompressed from {start} on: {_reason(error)}") from error
    except _WRONG as error:
        raise damaged(members.title, f"it is no tar archive from {start} on: {error}") from error


def _unpack(member: tarfile.TarInfo, stream: _Forward, members: Members) -> None:
    name = member.name
    if member.isdir():
        members.names.folder(name)
        return
    if member.issym() or member.islnk():
        raise harmful(members.title, name, "is a link")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse() or member.size < 0:
        raise harmful(members.title, name, "is neither a plain file nor a folder")
    members.write(name, member.size, stream.pieces(member.size))


def _check_end(stream: _Forward, title: str) -> None:
    """`tarfile` takes whatever is no header for the end of an archive. That is a block of zeros, and after it there are only zeros."""
    ended = stream.last == bytes(_BLOCK_BYTES)
    rest = b""
    for piece in stream.rest():
        rest += piece
        body, rest = rest[: -len(_END)], rest[-len(_END) :]
        ended = ended and not body.strip(b"\0")
    if not ended or rest != _END:
        raise damaged(title, "it ends before its end, or goes on after it")


class _Followed:
    """A file, and then these bytes."""

    def __init__(self, file: BinaryIO, rest: bytes) -> None:
        self._file = file
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        if not piece and size:
            piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


class _Forward:
    """A stream as `tarfile` reads files: it may go to a later place, never to an earlier one, and its headers have a limit."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at = 0
        self.last = b""
        """The header that was read last."""
        self.headers = 0
        """How many bytes of headers have been read for one member."""

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> int:
        if place < self._at:
            raise tarfile.ReadError("a member lies before the one that precedes it")
        for _ in self.pieces(place - self._at):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        """A header, or a part of one: `size` bytes, or fewer at the end."""
        self.headers += abs(size)
        if size < 0 or self.headers > _MOST_HEADER_BYTES:
            raise tarfile.ReadError("its headers are larger than any")
        self.last = b"".join(self.pieces(size))
        return self.last

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, or fewer at the end."""
        while size and (piece := self._stream.read(min(size, _PIECE_BYTES))):
            size -= len(piece)
            self._at += len(piece)
            yield piece

    def rest(self) -> Iterator[bytes]:
        """All that is left."""
        while piece := self._stream.read(_PIECE_BYTES):
            yield piece


def _reason(error: Exception) -> str:
    """What libzstd says, without the names of functions."""
    return str(error).rpartition(": ")[2]

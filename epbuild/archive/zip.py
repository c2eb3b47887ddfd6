"""Reader and reproducible writer of zip archives.

The bytes of an archive depend only on its files. Members are either stored, so that a reader can map them into memory, or deflated. The
writer implements PKWARE's APPNOTE 6.3.10. It does not use `zipfile`, whose bytes differ between systems and versions of Python.
"""

from __future__ import annotations

import contextlib
import errno
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from struct import Struct
from typing import BinaryIO

from epbuild.archive.artifact import Artifact, Copy
from epbuild.archive.members import Members, make_corrupt_error, make_unsafe_error, quote_member
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Write
from epbuild.core.errors import StepId
from epbuild.core.safepath import open_raw

MARKS: tuple[bytes, ...] = (b"PK\x03\x04", b"PK\x05\x06")
"""Magic numbers of zip archives. The second one marks an archive without members."""

_PIECE_BYTES = 1 << 18
_MAX_DIRECTORY_BYTES = 16 << 20  # `zipfile` reads the whole directory, and needs ten times its size in memory
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})  # other methods may need gigabytes of memory
_ENCRYPTED = 1 << 0
_UNIX = 3
_READ_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    LookupError,
    OverflowError,
    NotImplementedError,
)

GATHERED_BYTES = 8 << 20
"""Maximum size of a member that is buffered in memory, so that its CRC can precede its content.

In larger members, the CRC follows the content.
"""

_LOCAL = Struct("<4s5H3I2H")
_CENTRAL = Struct("<4s6H3I5H2I")
_DESCRIPTOR, _DESCRIPTOR64 = Struct("<4s3I"), Struct("<4sI2Q")
_END64, _LOCATOR64, _END = Struct("<4sQ2H2I4Q"), Struct("<4sIQI"), Struct("<4s4H2IH")
_LOCAL_MARK, _END_MARK = MARKS[0], MARKS[1]
_CENTRAL_MARK, _DESCRIPTOR_MARK = b"PK\x01\x02", b"PK\x07\x08"
_END64_MARK, _LOCATOR64_MARK = b"PK\x06\x06", b"PK\x06\x07"

_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
"""Values of the normal fields if a number is too large for them. The number itself is then in a zip64 field."""

_UTF8, _CRC_FOLLOWS = 1 << 11, 1 << 3
_STORED, _DEFLATED = 0, 8
_RAW_DEFLATE = -15  # the largest window, without zlib's own header
_GROWTH = 1000  # incompressible content grows by less than one byte per this many bytes
_VERSION, _VERSION64 = 20, 45
_MADE_ON_UNIX = 3 << 8
_FILE_0644 = 0o100644 << 16
_MIDNIGHT, _1980_01_01 = 0, 1 << 5 | 1


def write(artifacts: Sequence[Artifact], copy: Copy, put: Write, level: int | None, step: StepId | None) -> None:
    """Write a zip archive of `artifacts` in the given order, by calls of `put`. `level` is the deflate level (None: members are stored).

    Raises errors of `copy` and `put`.
    """
    members: list[_Member] = []
    offset = 0
    for artifact in artifacts:
        member = _Member(artifact.path.encode(), artifact.size, offset, artifact.size <= GATHERED_BYTES, level)
        offset += _write_gathered(member, artifact, copy, put) if member.gathered else _write_member(member, artifact, copy, put)
        members.append(member)
    directory = b"".join(member.build_central_header() for member in members)
    put(memoryview(directory + _build_end(len(members), len(directory), offset)))


def read_first_members(file: BinaryIO, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the name and content of the first members, until one was not written by `write`.

    The last content is None if it has more than `max_bytes` bytes or is damaged. Raises OSError.
    """
    while (member := _read_member(file, max_bytes)) is not None:
        yield member
        if member[1] is None:
            return


def _read_member(file: BinaryIO, max_bytes: int) -> tuple[str, bytes | None] | None:
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size:
        return None
    mark, _, flags, method, _, _, crc, packed_size, size, name_size, extra_size = _LOCAL.unpack(header)
    if mark != _LOCAL_MARK or flags not in (_UTF8, _UTF8 | _CRC_FOLLOWS) or method not in (_STORED, _DEFLATED):
        return None
    name = file.read(name_size + extra_size)[:name_size].decode(errors="replace")
    if flags != _UTF8 or max(packed_size, size) > max_bytes + max_bytes // _GROWTH:
        return name, None
    data = file.read(packed_size)
    if method == _DEFLATED:
        try:
            data = zlib.decompressobj(_RAW_DEFLATE).decompress(data, size + 1)
        except zlib.error:
            return name, None
    return name, data if len(data) == size <= max_bytes and zlib.crc32(data) == crc else None


@dataclass
class _Member:
    name: bytes
    size: int
    offset: int
    gathered: bool
    level: int | None
    packed_size: int = 0
    crc: int = 0

    @property
    def large(self) -> bool:
        """True if the size fields have eight bytes. This must be decided before compression."""
        return self.size + (0 if self.level is None else self.size // _GROWTH) >= _MAX32

    def build_local_header(self) -> bytes:
        absent = _MAX32 if self.large else 0
        crc, packed, size = (self.crc, self.packed_size, self.size) if self.gathered else (0, absent, absent)
        extra = _build_extra64(0, 0) if self.large else b""  # declares that the sizes after the content have eight bytes
        head = _LOCAL.pack(_LOCAL_MARK, *self._list_common_fields(), crc, packed, size, len(self.name), len(extra))
        return head + self.name + extra

    def build_descriptor(self) -> bytes:
        shape = _DESCRIPTOR64 if self.large else _DESCRIPTOR
        return shape.pack(_DESCRIPTOR_MARK, self.crc, self.packed_size, self.size)

    def make_packer(self) -> Callable[[bytes | bytearray | memoryview, bool], bytes | bytearray | memoryview]:
        """Return a function that compresses a piece of the content. Its second argument tells whether the piece is the last one."""
        if self.level is None:
            return lambda piece, last: piece
        packer = zlib.compressobj(self.level, zlib.DEFLATED, _RAW_DEFLATE)
        return lambda piece, last: packer.compress(piece) + (packer.flush() if last else b"")

    def build_central_header(self) -> bytes:
        far = self.offset >= _MAX32
        sizes, offsets = (self.size, self.packed_size) if self.large else (), (self.offset,) if far else ()
        extra = _build_extra64(*sizes, *offsets) if sizes or offsets else b""
        version, *others = self._list_common_fields()
        packed, size = (_MAX32, _MAX32) if self.large else (self.packed_size, self.size)
        return (
            _CENTRAL.pack(
                *(_CENTRAL_MARK, _MADE_ON_UNIX | _VERSION64, _VERSION64 if far else version, *others, self.crc, packed, size),
                *(len(self.name), len(extra), 0, 0, 0, _FILE_0644, min(self.offset, _MAX32)),
            )
            + self.name
            + extra
        )

    def _list_common_fields(self) -> tuple[int, ...]:
        version = _VERSION64 if self.large else _VERSION
        method = _STORED if self.level is None else _DEFLATED
        return version, _UTF8 if self.gathered else _UTF8 | _CRC_FOLLOWS, method, _MIDNIGHT, _1980_01_01


def _write_gathered(member: _Member, artifact: Artifact, copy: Copy, put: Write) -> int:
    data = bytearray()
    copy(artifact, data.extend)
    member.crc = zlib.crc32(data)
    packed = member.make_packer()(data, True)
    member.packed_size = len(packed)
    head = member.build_local_header()
    put(memoryview(head))
    put(memoryview(packed))
    return len(head) + len(packed)


def _write_member(member: _Member, artifact: Artifact, copy: Copy, put: Write) -> int:
    pack = member.make_packer()

    def write(piece: bytes | memoryview, last: bool = False) -> None:
        member.crc = zlib.crc32(piece, member.crc)
        packed = pack(piece, last)
        member.packed_size += len(packed)
        put(memoryview(packed))

    head = member.build_local_header()
    put(memoryview(head))
    copy(artifact, write)
    write(b"", last=True)
    tail = member.build_descriptor()
    put(memoryview(tail))
    return len(head) + member.packed_size + len(tail)


def _build_extra64(*numbers: int) -> bytes:
    return Struct(f"<2H{len(numbers)}Q").pack(1, 8 * len(numbers), *numbers)


def _build_end(count: int, size: int, offset: int) -> bytes:
    """Return the end records of an archive whose directory has `count` members and `size` bytes and begins at `offset`."""
    end = _END.pack(_END_MARK, 0, 0, *(min(count, _MAX16),) * 2, min(size, _MAX32), min(offset, _MAX32), 0)
    if count < _MAX16 and size < _MAX32 and offset < _MAX32:
        return end
    end64 = _END64.pack(_END64_MARK, _END64.size - 12, _MADE_ON_UNIX | _VERSION64, _VERSION64, 0, 0, count, count, size, offset)
    return end64 + _LOCATOR64.pack(_LOCATOR64_MARK, 0, offset + size, 1) + end


def unpack(path: Path, members: Members) -> None:
    """Write every member of the archive to `members`. Raises UnsoundArchive, CannotUnpack, and OSError if reading fails."""
    with contextlib.ExitStack() as stack:
        with _translate_read_errors(members.title, "the archive's directory"):
            file = stack.enter_context(_File(open_raw(path)))
            archive = stack.enter_context(zipfile.ZipFile(file))
        infos = archive.infolist()
        for info in sorted(infos, key=lambda info: PurePosixPath(info.orig_filename).name != MANIFEST):
            _check_member(info, members.title)
            if info.is_dir():
                members.names.add_folder(info.orig_filename)
            else:
                members.write(info.orig_filename, info.file_size, _read_pieces(archive, info, members.title))


class _File(io.BufferedReader):
    """File that refuses to read too many bytes at once. This limits the size of the zip directory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("It is too large")
        return super().read(size)


def _check_member(info: zipfile.ZipInfo, title: str) -> None:
    """Raise UnsoundArchive for a member that is neither a plain file nor a folder, or that cannot be decoded."""
    # The mode tells whether a member is a link or a device. Archives from systems without modes have no mode.
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise make_unsafe_error(
            title, info.orig_filename, "is a link" if kind == stat.S_IFLNK else "is neither a file nor a folder"
        )
    if info.flag_bits & _ENCRYPTED:
        raise make_unsafe_error(title, info.orig_filename, "is encrypted")
    if info.compress_type not in _METHODS:
        raise make_unsafe_error(
            title,
            info.orig_filename,
            f"is compressed by method {info.compress_type}; only stored and deflated members can be read",
        )


def _read_pieces(archive: zipfile.ZipFile, info: zipfile.ZipInfo, title: str) -> Iterator[bytes]:
    what = f"the member {quote_member(info.orig_filename)}"
    with contextlib.ExitStack() as stack:
        with _translate_read_errors(title, what):
            file = stack.enter_context(archive.open(info))
        while True:
            with _translate_read_errors(title, what):
                piece = file.read(_PIECE_BYTES)
            if not piece:
                return
            yield piece


@contextlib.contextmanager
def _translate_read_errors(title: str, what: str) -> Iterator[None]:
    try:
        yield
    except _READ_ERRORS as error:
        raise make_corrupt_error(title, f"{what} is damaged: {_extract_reason(error)}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised by a seek to a position before the beginning
            raise
        raise make_corrupt_error(title, f"{what} is damaged: it refers to positions outside the archive") from error
    except RuntimeError as error:
        raise make_corrupt_error(title, f"{what} cannot be read: {error}") from error


def _extract_reason(error: Exception) -> str:
    """Return Python's reason without the member's name, which the message already contains."""
    text = str(error).partition(" for file ")[0]
    if text == "File is not a zip file":  # although the file begins like a zip file
        return "it is missing at the end of the archive"
    return text[:1].lower() + text[1:] if text else type(error).__name__

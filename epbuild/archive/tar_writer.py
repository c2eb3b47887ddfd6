"""Tar archives whose bytes depend on nothing but what is in them: plain USTAR, and a pax header only where a name or a size needs one.

Written from POSIX.1-2017 (pax), not with the standard library: what `tarfile` writes differs between versions of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from epbuild.archive.content import Content, Pour, Write

_BLOCK_BYTES = 512
_RECORD_BYTES = 20 * _BLOCK_BYTES
_HEADER = Struct("100s 8s 8s 8s 12s 12s 8s c 100s 8s 32s 32s 8s 8s 155s 12x")
_NAME_BYTES, _PREFIX_BYTES = 100, 155
_LARGE = 1 << 33  # in octal this has one digit more than there is room for
_NO_SUM = b" " * 8
_USTAR = b"ustar\x0000"
_FILE, _PAX = b"0", b"x"
_PAX_NAME = b"././@PaxHeader"


class Source(Protocol):
    """Gives the next bytes, as many as were asked for or fewer, and none at the end."""

    def read(self, size: int, /) -> bytes: ...


def write_tar(contents: Sequence[Content], pour: Pour, put: Write) -> None:
    """Give the bytes of a tar archive of `contents`, in their order, to `put`. Raises what `pour` and `put` raise."""
    written = 0
    for content in contents:
        head, padding = _head(content.path, content.size), bytes(-content.size % _BLOCK_BYTES)
        put(memoryview(head))
        pour(content, put)
        put(memoryview(padding))
        written += len(head) + content.size + len(padding)
    end = 2 * _BLOCK_BYTES
    put(memoryview(bytes(end + -(written + end) % _RECORD_BYTES)))


def first_member(source: Source, most: int) -> tuple[str, bytes] | None:
    """The name and content of the first member of an archive that `write_tar` may have written; it is None if it has over `most` bytes.

    Reads no more than that member. Raises what reading raises.
    """
    header = _exactly(source, _BLOCK_BYTES)
    if len(header) < _BLOCK_BYTES:
        return None
    name, _, _, _, size_text, _, sum_text, kind, _, magic, *_, prefix = _HEADER.unpack(header)
    try:
        size, expected = int(size_text.rstrip(b"\0 "), 8), int(sum_text.rstrip(b"\0 "), 8)
    except ValueError:
        return None
    if magic != _USTAR or kind != _FILE or prefix.strip(b"\0") or expected != _sum(header) or not 0 <= size <= most:
        return None
    data = _exactly(source, size)
    return (name.rstrip(b"\0").decode(errors="replace"), data) if len(data) == size else None


def _head(path: str, size: int) -> bytes:
    """Everything that stands before a member's content."""
    name, prefix = _split(path)
    fields = {
        **({"path": path} if name is None else {}),
        **({"size": str(size)} if size >= _LARGE else {}),
    }
    mangled = path.encode("ascii", "replace")[:_NAME_BYTES] if name is None else name
    plain = _header(mangled, prefix, size if size < _LARGE else 0, _FILE)
    if not fields:
        return plain
    records = b"".join(_record(key, value) for key, value in fields.items())
    return _header(_PAX_NAME, b"", len(records), _PAX) + records + bytes(-len(records) % _BLOCK_BYTES) + plain


def _header(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    fields = [
        name,
        _octal(0o644, 8),
        _octal(0, 8),
        _octal(0, 8),
        _octal(size, 12),
        _octal(0, 12),
        _NO_SUM,
        kind,
        b"",
        _USTAR,
        b"",
        b"",
    ]
    blank = _HEADER.pack(*fields, _octal(0, 8), _octal(0, 8), prefix)
    fields[6] = b"%06o\0 " % _sum(blank)
    return _HEADER.pack(*fields, _octal(0, 8), _octal(0, 8), prefix)


def _split(path: str) -> tuple[bytes | None, bytes]:
    """A path as USTAR's name and prefix, which have a slash between them; None where it has no room there, or is not ASCII."""
    if not path.isascii():
        return None, b""
    name = path.encode()
    if len(name) <= _NAME_BYTES:
        return name, b""
    at = name.find(b"/", max(len(name) - _NAME_BYTES - 1, 1))
    return (name[at + 1 :], name[:at]) if 0 < at <= _PREFIX_BYTES and at < len(name) - 1 else (None, b"")


def _record(key: str, value: str) -> bytes:
    """A pax record: it begins with its own length, whose digits count too."""
    rest = f" {key}={value}\n".encode()
    size = len(rest)
    while size != len(rest) + len(str(size)):
        size = len(rest) + len(str(size))
    return str(size).encode() + rest


def _octal(number: int, room: int) -> bytes:
    return b"%0*o\0" % (room - 1, number)


def _sum(header: bytes) -> int:
    """The sum of a header's bytes, in which its sum counts as spaces."""
    return sum(header[:148]) + sum(_NO_SUM) + sum(header[156:])


def _exactly(source: Source, size: int) -> bytes:
    """The next `size` bytes, or fewer at the end."""
    pieces, left = [], size
    while left and (piece := source.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)

"""Protobuf's wire format over a seekable file.

Only a small window of the file is in memory at any time; a field's value is skipped by seeking unless it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

# Headers lie close together and weights lie far apart: a window of this size reads a graph in few calls, and wastes
# little where each tensor is followed by a seek.
_WINDOW = 32 * 1024
# A tag and a length are at most ten bytes each, so with this many bytes ahead of it the scanner needs no further checks.
_AHEAD = 20
_SHORT = 256
_LARGEST_TEXT = 16 * 1024 * 1024
_MOST_TEXT = 64 * 1024 * 1024
_LARGEST_PACKED = 64 * 1024
_UINT64 = (1 << 64) - 1
_LARGEST_TAG = (1 << 32) - 1
_SIGN = 1 << 63
_made = tuple.__new__
"""What a named tuple's own `__new__` calls: models have tens of thousands of fields."""


class MalformedModel(ValueError):
    """The file is not a well-formed ONNX model; the text names what is wrong and at which byte of the file.

    The text does not name the file: the caller knows what its user calls it. `offset` is the byte, or None for the whole file.
    """

    def __init__(self, what: str, offset: int | None = None) -> None:
        super().__init__(what if offset is None else f"{what}, at byte {offset}")
        self.offset = offset


class Field(NamedTuple):
    """One field of a message and where it lies, as byte offsets from the start of the file.

    `length_at` is where the length of a length-delimited field is written; for the other wire types it equals `start`.
    `value` is the number of a varint, read as int64, and None for the other wire types.
    """

    number: int
    wire_type: int
    tag_at: int
    length_at: int
    start: int
    end: int
    value: int | None

    @property
    def size(self) -> int:
        return self.end - self.start


class WireReader:
    """Reads the fields of messages in `file`, which stays open and is the caller's to close."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._window = b""
        self._base = 0
        self._text = 0
        self.size = file.seek(0, os.SEEK_END)

    def fields(self, start: int, end: int, wanted: frozenset[int] | None = None) -> Iterator[Field]:
        """The fields between two offsets, in file order; only those with a `wanted` number, where that is given.

        Raises MalformedModel for anything that is not a whole field, in fields that are not wanted too.
        """
        position = start
        while position < end:
            # The consumer of this generator reads other places between two fields, so the window may have moved.
            at = position - self._base
            if at < 0 or at + _AHEAD > len(self._window):
                self._load(position)
                at = 0
            window = self._window
            base = self._base

            tag = window[at]
            at += 1
            if tag >= 0x80:
                tag, at = _decode_varint(window, at - 1, base)
                if base + at > end:
                    raise self._overrun("a field's tag", position, end)
            number = tag >> 3
            wire_type = tag & 7
            if number == 0 or tag > _LARGEST_TAG:
                raise MalformedModel(f"{number} is not a field number", position)

            length_at = begin = base + at
            value = None
            if wire_type == LENGTH_DELIMITED:
                length = window[at]
                at += 1
                if length >= 0x80:
                    length, at = _decode_varint(window, at - 1, base)
                begin = base + at
                stop = begin + length
            elif wire_type == VARINT:
                value, at = _decode_varint(window, at, base)
                if value >= _SIGN:
                    value -= 1 << 64
                stop = base + at
            elif wire_type == FIXED32:
                stop = begin + 4
            elif wire_type == FIXED64:
                stop = begin + 8
            elif wire_type in (3, 4):
                raise MalformedModel(f"field {number} is a group, which ONNX does not use", position)
            else:
                raise MalformedModel(f"field {number} has the unknown wire type {wire_type}", position)
            if stop > end:
                raise self._overrun(f"field {number}", position, end)

            if wanted is None or number in wanted:
                yield _made(Field, (number, wire_type, position, length_at, begin, stop, value))
            position = stop

    def message(self, field: Field, wanted: frozenset[int] | None = None) -> Iterator[Field]:
        """The fields of the message that `field` holds, as `fields` gives them."""
        if field.wire_type != LENGTH_DELIMITED:
            raise _mismatch(field, LENGTH_DELIMITED)
        return self.fields(field.start, field.end, wanted)

    def text(self, field: Field) -> str:
        """The value as text; bytes that are not UTF-8 become escapes, as ONNX readers do not refuse them.

        Raises MalformedModel where the value is too long (over 16 MiB) to be a text that a header holds, or all that were asked for are
        (over 64 MiB).
        """
        _, wire_type, _, _, start, end, _ = field
        self._text += end - start
        if self._text > _MOST_TEXT:
            raise MalformedModel("the texts up to here are longer than those of any header", field.tag_at)
        at = start - self._base
        if wire_type == LENGTH_DELIMITED and at >= 0 and end - self._base <= len(self._window):  # as almost all are
            return self._window[at : end - self._base].decode("utf-8", "backslashreplace")
        return self._bytes(field, _LARGEST_TEXT).decode("utf-8", "backslashreplace")

    def short(self, field: Field) -> bytes | None:
        """The bytes of a short message that is at hand, which count as text; None where they would have to be read."""
        at = field.start - self._base
        if field.wire_type != LENGTH_DELIMITED or field.size > _SHORT or at < 0 or at + field.size > len(self._window):
            return None
        self._text += field.size
        return self._window[at : at + field.size]

    def integers(self, field: Field) -> Iterator[int]:
        """The value of one occurrence of a repeated integer field: one number, or several where they are packed."""
        if field.value is not None:
            yield field.value
            return
        packed = self._bytes(field, _LARGEST_PACKED) + bytes(_AHEAD)
        at = 0
        while at < field.size:
            value, at = _decode_varint(packed, at, field.start)
            if at > field.size:
                raise self._overrun("a packed number", field.start + at, field.end)
            yield value - (1 << 64) if value >= _SIGN else value

    def head(self, field: Field, most: int) -> bytes:
        """The first `most` bytes of a message or a text, or all of them."""
        if field.wire_type != LENGTH_DELIMITED:
            raise _mismatch(field, LENGTH_DELIMITED)
        self._file.seek(field.start)
        return self._read(field.start, min(field.size, most))

    def _bytes(self, field: Field, most: int) -> bytes:
        if field.wire_type != LENGTH_DELIMITED:
            raise _mismatch(field, LENGTH_DELIMITED)
        if field.size > most:
            raise MalformedModel(f"field {field.number} is {field.size} bytes long where a short value belongs", field.tag_at)
        at = field.start - self._base
        # The window's last bytes are padding where the file ends, but a field never reaches past the file's end.
        if at >= 0 and at + field.size <= len(self._window):
            return self._window[at : at + field.size]
        self._file.seek(field.start)
        return self._read(field.start, field.size)

    def _load(self, position: int) -> None:
        self._file.seek(position)
        wanted = min(_WINDOW, self.size - position)
        self._window = self._read(position, wanted)
        self._base = position
        if position + wanted == self.size:
            # A varint that is cut off by the end of the file then ends in a zero past it, where it is noticed.
            self._window += bytes(_AHEAD)

    def _read(self, position: int, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise MalformedModel("the file became shorter while it was read", position + len(data))
        return data

    def _overrun(self, what: str, position: int, end: int) -> MalformedModel:
        if end == self.size:
            return MalformedModel(f"the file is cut short: {what} reaches past its end at byte {end}", position)
        return MalformedModel(f"{what} reaches past the end of its message at byte {end}", position)


def integer(field: Field) -> int:
    """The number that a varint field holds; raises MalformedModel for another wire type."""
    if field.value is None:
        raise _mismatch(field, VARINT)
    return field.value


def encode_varint(value: int) -> bytes:
    """The shortest varint of a number that is not negative."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_bytes(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(content)) + content


def encode_integer(number: int, value: int) -> bytes:
    """A varint field."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def _decode_varint(data: bytes, at: int, base: int) -> tuple[int, int]:
    """The number at `data[at]`, and the index after it; `base` is the file offset of `data[0]`."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, at
    raise MalformedModel("a varint is longer than ten bytes", base + at - 10)


def _mismatch(field: Field, wire_type: int) -> MalformedModel:
    what = f"field {field.number} has wire type {field.wire_type} where {wire_type} belongs"
    return MalformedModel(what, field.tag_at)

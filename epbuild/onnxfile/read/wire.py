"""Reader and encoder of protobuf's wire format in a seekable file.

Only a small window of the file is in memory at any time. The reader seeks over a field's value unless the caller reads the
value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

# Headers are close together, and weights are far apart. A window of this size reads a graph in few calls, and wastes
# little if a seek follows each tensor.
_WINDOW = 32 * 1024
# A tag and a length have at most ten bytes each. With this many bytes ahead, the scanner needs no further checks.
_AHEAD = 20
_MAX_SHORT = 256
_MAX_TEXT = 16 * 1024 * 1024
_MAX_ALL_TEXTS = 64 * 1024 * 1024
_MAX_PACKED = 64 * 1024
_UINT64 = (1 << 64) - 1
_MAX_TAG = (1 << 32) - 1
_SIGN = 1 << 63
_new_tuple = tuple.__new__
"""Constructor that bypasses a named tuple's own, slower `__new__`. Models have tens of thousands of fields."""


class MalformedModel(ValueError):
    """Error for a file that is not a well-formed ONNX model. The text has the problem and its byte offset in the file.

    The text does not name the file, because only the caller knows the name that the user gave. `offset` is None if the
    whole file is wrong.
    """

    def __init__(self, what: str, offset: int | None = None) -> None:
        super().__init__(what if offset is None else f"{what}, at byte {offset}")
        self.offset = offset


class Field(NamedTuple):
    """Field of a message, with its position as byte offsets from the start of the file.

    `length_at` is the offset of a length-delimited field's length, and equals `start` for other wire types. `value` is the
    integer in a varint field, read as int64, and None for other wire types.
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
    """Reader of the fields of messages in `file`. The caller closes the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._window = b""
        self._base = 0
        self._text = 0
        self.size = file.seek(0, os.SEEK_END)

    def fields(self, start: int, end: int, wanted: frozenset[int] | None = None) -> Iterator[Field]:
        """Yield the fields between two offsets in file order. With `wanted`, yield only fields with these numbers.

        Raises MalformedModel for any incomplete field, even if it is not wanted.
        """
        position = start
        while position < end:
            # The consumer of this generator may read elsewhere between two fields, which moves the window.
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
                    raise self._make_overrun_error("a field's tag", position, end)
            number = tag >> 3
            wire_type = tag & 7
            if number == 0 or tag > _MAX_TAG:
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
                raise self._make_overrun_error(f"field {number}", position, end)

            if wanted is None or number in wanted:
                yield _new_tuple(Field, (number, wire_type, position, length_at, begin, stop, value))
            position = stop

    def message(self, field: Field, wanted: frozenset[int] | None = None) -> Iterator[Field]:
        """Yield the fields of the message in `field`, as `fields` does."""
        if field.wire_type != LENGTH_DELIMITED:
            raise _make_mismatch_error(field, LENGTH_DELIMITED)
        return self.fields(field.start, field.end, wanted)

    def text(self, field: Field) -> str:
        """Return the value of a field as text. Bytes that are not UTF-8 are escaped, because ONNX readers accept them.

        Raises MalformedModel if the value is too long for a header (over 16 MiB), or if all texts read so far exceed 64
        MiB.
        """
        _, wire_type, _, _, start, end, _ = field
        self._text += end - start
        if self._text > _MAX_ALL_TEXTS:
            raise MalformedModel("the strings before this field are too long for a header", field.tag_at)
        at = start - self._base
        if wire_type == LENGTH_DELIMITED and at >= 0 and end - self._base <= len(self._window):  # true for almost all fields
            return self._window[at : end - self._base].decode("utf-8", "backslashreplace")
        return self._read_bytes(field, _MAX_TEXT).decode("utf-8", "backslashreplace")

    def short(self, field: Field) -> bytes | None:
        """Return the bytes of a message, or None if it is long or not in the window. The bytes count toward the limit of `text`."""
        at = field.start - self._base
        if field.wire_type != LENGTH_DELIMITED or field.size > _MAX_SHORT or at < 0 or at + field.size > len(self._window):
            return None
        self._text += field.size
        return self._window[at : at + field.size]

    def integers(self, field: Field) -> Iterator[int]:
        """Yield the numbers in one occurrence of a repeated integer field. A packed field has several numbers."""
        if field.value is not None:
            yield field.value
            return
        packed = self._read_bytes(field, _MAX_PACKED) + bytes(_AHEAD)
        at = 0
        while at < field.size:
            value, at = _decode_varint(packed, at, field.start)
            if at > field.size:
                raise self._make_overrun_error("a packed number", field.start + at, field.end)
            yield value - (1 << 64) if value >= _SIGN else value

    def head(self, field: Field, limit: int) -> bytes:
        """Return the first bytes of a message or a text, at most `limit`."""
        if field.wire_type != LENGTH_DELIMITED:
            raise _make_mismatch_error(field, LENGTH_DELIMITED)
        self._file.seek(field.start)
        return self._read(field.start, min(field.size, limit))

    def _read_bytes(self, field: Field, limit: int) -> bytes:
        if field.wire_type != LENGTH_DELIMITED:
            raise _make_mismatch_error(field, LENGTH_DELIMITED)
        if field.size > limit:
            raise MalformedModel(f"field {field.number} has {field.size} bytes, but a short value was expected", field.tag_at)
        at = field.start - self._base
        # At the end of the file, the window's last bytes are padding. A field never extends past the end of the file.
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
            # A varint cut off by the end of the file then ends in a zero past the end, where it is detected.
            self._window += bytes(_AHEAD)

    def _read(self, position: int, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise MalformedModel("the file was truncated while it was being read", position + len(data))
        return data

    def _make_overrun_error(self, what: str, position: int, end: int) -> MalformedModel:
        if end == self.size:
            return MalformedModel(f"the file is truncated: {what} extends past the last byte, {end}", position)
        return MalformedModel(f"{what} extends past the end of its message, byte {end}", position)


def read_integer(field: Field) -> int:
    """Return the value of a varint field. Raises MalformedModel for another wire type."""
    if field.value is None:
        raise _make_mismatch_error(field, VARINT)
    return field.value


def encode_varint(value: int) -> bytes:
    """Encode a nonnegative number as the shortest varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_bytes(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(content)) + content


def encode_integer(number: int, value: int) -> bytes:
    """Encode a varint field."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def _decode_varint(data: bytes, at: int, base: int) -> tuple[int, int]:
    """Return the number that begins at `data[at]`, and the index after it. `base` is the file offset of `data[0]`."""
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


def _make_mismatch_error(field: Field, wire_type: int) -> MalformedModel:
    what = f"field {field.number} has wire type {field.wire_type} instead of {wire_type}"
    return MalformedModel(what, field.tag_at)

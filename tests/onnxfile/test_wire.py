from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.onnxfile.read.wire import FIXED32, FIXED64, MalformedModel, WireReader, encode_varint, read_integer


def reader(data: bytes) -> WireReader:
    return WireReader(io.BytesIO(data))


def test_field_is_found_at_its_exact_bytes() -> None:
    data = b"\x08\x96\x01" + b"\x82\x01\x03abc" + b"\x1d1234" + b"\x2112345678"
    wire = reader(data)
    number, text, fixed32, fixed64 = wire.fields(0, len(data))
    assert (number.number, number.value, number.tag_at, number.start, number.end) == (1, 150, 0, 1, 3)
    assert (text.number, text.tag_at, text.length_at, text.start, text.end) == (16, 3, 5, 6, 9)
    assert wire.text(text) == "abc"
    assert (fixed32.wire_type, data[fixed32.start : fixed32.end]) == (FIXED32, b"1234")
    assert (fixed64.wire_type, data[fixed64.start : fixed64.end]) == (FIXED64, b"12345678")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x08\x01\x12\x05abc", "the file is truncated: field 2 extends past the last byte, 7, at byte 2"),
        (b"\x12", "the file is truncated: field 2 .*, at byte 0"),
        (b"\x08\x80", "the file is truncated: field 1 .*, at byte 0"),
        (b"\x08\x01\x80", "the file is truncated: a field's tag .*, at byte 2"),
        (b"\x1dabc", "the file is truncated: field 3 .*, at byte 0"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "a varint is longer than ten bytes, at byte 1"),
        (b"\x08\x01\x0b\x0c", "field 1 is a group, which ONNX does not use, at byte 2"),
        (b"\x0e", "field 1 has the unknown wire type 6, at byte 0"),
        (b"\x00\x01", "0 is not a field number, at byte 0"),
        (b"\xf8\xff\xff\xff\xff\x01\x00", "is not a field number, at byte 0"),
    ],
)
def test_damage_is_reported_with_its_cause_and_byte(data: bytes, message: str) -> None:
    wire = reader(data)
    with pytest.raises(MalformedModel, match=message):
        list(wire.fields(0, len(data)))
    # A skipped field is checked like a requested one.
    with pytest.raises(MalformedModel, match=message):
        list(wire.fields(0, len(data), frozenset()))


def test_field_past_the_end_of_its_parent_is_refused() -> None:
    data = b"\x0a\x03\x12\x05a" + b"\x10\x01" * 8
    wire = reader(data)
    outer = next(wire.fields(0, len(data)))
    with pytest.raises(MalformedModel, match=r"field 2 extends past the end of its message, byte 5, at byte 2"):
        list(wire.message(outer))


def test_field_of_another_wire_type_is_refused() -> None:
    wire = reader(b"\x08\x01\x12\x01a")
    number, text = wire.fields(0, wire.size)
    with pytest.raises(MalformedModel, match="wire type 0 instead of 2, at byte 0"):
        wire.text(number)
    with pytest.raises(MalformedModel, match="wire type 0 instead of 2, at byte 0"):
        wire.message(number)
    with pytest.raises(MalformedModel, match="wire type 2 instead of 0, at byte 2"):
        read_integer(text)


def test_fields_are_correct_when_other_places_are_read_in_between() -> None:
    # Three messages, each larger than the reader's window, so that every inner read moves it.
    inner = b"".join(b"\x0a\x04%04d" % n for n in range(10_000))
    data = b"".join(b"\x12" + encode_varint(len(inner)) + inner for _ in range(3)) + b"\x18\x2a"
    wire = reader(data)
    read = []
    for field in wire.fields(0, wire.size):
        if field.number == 3:
            assert field.value == 42
        else:
            read.append([wire.text(part) for part in wire.message(field)])
    assert read == [[f"{n:04d}" for n in range(10_000)]] * 3


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_and_unpacked_integers_are_equal(numbers: list[int]) -> None:
    encoded = [encode_varint(number % 2**64) for number in numbers]
    packed = b"\x0a" + encode_varint(len(b"".join(encoded))) + b"".join(encoded)
    for data in (packed, b"".join(b"\x08" + number for number in encoded)):
        wire = reader(data)
        assert [value for field in wire.fields(0, wire.size) for value in wire.integers(field)] == numbers


def test_truncated_packed_number_is_refused() -> None:
    wire = reader(b"\x0a\x02\x01\x80\x01")
    (field,) = wire.fields(0, 4)
    with pytest.raises(MalformedModel, match="a packed number"):
        list(wire.integers(field))


def test_invalid_utf8_is_escaped_and_not_refused() -> None:
    wire = reader(b"\x0a\x03a\xffb")
    (field,) = wire.fields(0, wire.size)
    assert wire.text(field) == "a\\xffb"


def test_huge_field_in_place_of_a_name_is_refused_and_not_loaded() -> None:
    length = 17 * 1024 * 1024
    wire = reader(b"\x0a" + encode_varint(length) + bytes(length))
    (field,) = wire.fields(0, wire.size)
    with pytest.raises(MalformedModel, match="but a short value was expected"):
        wire.text(field)


def test_file_that_shrinks_while_it_is_read_is_an_error_and_not_a_hang() -> None:
    file = io.BytesIO(b"\x0a\x01a" * 100)
    wire = WireReader(file)
    file.truncate(10)
    with pytest.raises(MalformedModel, match="was truncated while it was being read, at byte 10"):
        list(wire.fields(0, wire.size))

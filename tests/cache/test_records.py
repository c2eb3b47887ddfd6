"""Action records: a valid record reads as written, and a damaged record is a miss."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.cache.records import RECORD_FORMAT, ActionRecords
from epbuild.core.canonical import encode_canonical
from epbuild.core.errors import StoreError

KEY = "ab" * 32
OTHER = "cd" * 32

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def records(tmp_path: Path) -> ActionRecords:
    return ActionRecords(tmp_path)


def sealed(**envelope: object) -> bytes:
    """Return a record file with a correct digest for any content."""
    digest = hashlib.sha256(encode_canonical(envelope).encode()).hexdigest()
    return f"{encode_canonical({**envelope, 'sha256': digest})}\n".encode()


def place(root: Path, key: str = KEY) -> Path:
    return root / "actions" / key[:2] / f"{key}.json"


@given(document=st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_document_survives_a_round_trip(document: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        ActionRecords(Path(root)).put(KEY, document)
        assert ActionRecords(Path(root)).get(KEY) == document


def test_unrecorded_action_is_a_miss(records: ActionRecords, tmp_path: Path) -> None:
    assert records.get(KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_equal_documents_give_equal_files_in_any_key_order(records: ActionRecords, tmp_path: Path) -> None:
    records.put(KEY, {"b": 1, "a": "größe"})
    first = place(tmp_path).read_bytes()
    records.put(KEY, {"a": "größe", "b": 1})
    assert place(tmp_path).read_bytes() == first
    written = f'"format":{RECORD_FORMAT},"key":"{KEY}","record":{{"a":"größe","b":1}}'
    digest = hashlib.sha256(f"{{{written}}}".encode()).hexdigest()
    assert first == f'{{{written},"sha256":"{digest}"}}\n'.encode()


def test_document_may_use_the_keys_of_the_envelope(records: ActionRecords) -> None:
    document = {"key": {"ep": "QNN"}, "format": "text", "record": [1]}
    records.put(KEY, document)
    assert records.get(KEY) == document


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b'{"format":1,"key":"ab',
        b"\xff\xfe not text",
        b"[1, 2]",
        b"null",
        b"[" * 100_000,
        sealed(key=KEY, record={}),
        sealed(format=RECORD_FORMAT, key=OTHER, record={}),
        sealed(format=RECORD_FORMAT, key=KEY, record=[]),
        sealed(format=RECORD_FORMAT, key=KEY, record={}).rstrip(),
        json.dumps({"format": RECORD_FORMAT, "key": KEY, "record": {}}).encode(),
        json.dumps({"format": RECORD_FORMAT + 1, "key": KEY, "record": {}}).encode(),
        json.dumps({"format": 0, "key": KEY, "record": {}}).encode(),
        b'{"format":2,"key":"","record":{"a":NaN},"sha256":""}',
        b'{"format":2,"key":"","record":{"a":"\\ud800"},"sha256":""}',
    ],
)
def test_broken_record_is_a_miss_and_can_be_recorded_again(records: ActionRecords, tmp_path: Path, broken: bytes) -> None:
    records.put(KEY, {"result": "x"})
    place(tmp_path).write_bytes(broken)
    assert records.get(KEY) is None
    assert not place(tmp_path).exists()
    assert (tmp_path / "actions" / "damaged" / f"{KEY}.json").read_bytes() == broken
    records.put(KEY, {"result": "x"})
    assert records.get(KEY) == {"result": "x"}


def test_record_of_a_newer_version_is_a_miss_and_is_kept(records: ActionRecords, tmp_path: Path) -> None:
    other = sealed(format=RECORD_FORMAT + 1, key=KEY, result={})
    records.put(KEY, {})
    place(tmp_path).write_bytes(other)
    assert records.get(KEY) is None
    assert place(tmp_path).read_bytes() == other


@pytest.mark.gate
def test_every_flipped_bit_causes_a_miss(records: ActionRecords, tmp_path: Path) -> None:
    records.put(KEY, {"result": {"sizes": [1, 2.5, None, True], "name": "größe"}})
    sound = place(tmp_path).read_bytes()
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        place(tmp_path).write_bytes(flipped)
        assert records.peek(KEY) is None, bit
        assert not place(tmp_path).exists(), bit


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_pipe_in_place_of_a_record_is_an_immediate_error(records: ActionRecords, tmp_path: Path) -> None:
    place(tmp_path).parent.mkdir(parents=True)
    os.mkfifo(place(tmp_path))
    with pytest.raises(StoreError, match=r"Not a regular file\. .*\[EPB503\]"):
        records.get(KEY)


def test_record_with_an_unexpected_shape_is_damaged(tmp_path: Path) -> None:
    ActionRecords(tmp_path).put(KEY, {"result": "x"})
    assert ActionRecords(tmp_path, lambda document: "result" in document).get(KEY) == {"result": "x"}
    assert ActionRecords(tmp_path, lambda document: "size" in document).get(KEY) is None
    assert not place(tmp_path).exists()


def test_non_json_document_is_refused_and_the_old_record_stays(records: ActionRecords) -> None:
    records.put(KEY, {"seconds": 1.5})
    with pytest.raises(ValueError, match="JSON"):
        records.put(KEY, {"seconds": float("nan")})
    assert records.get(KEY) == {"seconds": 1.5}


def test_invalid_key_cannot_name_a_file_outside_the_store(records: ActionRecords) -> None:
    with pytest.raises(ValueError, match="invalid action key"):
        records.put("../../etc/passwd", {})


def test_unreadable_record_is_an_error_and_not_a_miss(records: ActionRecords, tmp_path: Path) -> None:
    place(tmp_path).mkdir(parents=True)
    with pytest.raises(StoreError, match=KEY):
        records.get(KEY)

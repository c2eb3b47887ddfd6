"""Records in the form of the Remote Execution API: other programs read them as written, and no bytes do harm."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.digest import Blob
from epbuild.remote.reapi import MalformedMessage, ReapiFile, ReapiResult
from tests.support.cache_server import MESSAGES

DIGESTS = st.binary(max_size=8).map(lambda data: hashlib.sha256(data).hexdigest())
BLOBS = st.builds(Blob, DIGESTS, st.integers(0, 2**63 - 1))
FILES = st.builds(ReapiFile, st.text(st.characters(codec="utf-8"), max_size=20), BLOBS, st.booleans())
RESULTS = st.builds(
    ReapiResult,
    st.lists(FILES, max_size=5).map(tuple),
    st.binary(max_size=300),
    st.none() | BLOBS,
    st.sampled_from(["", "w", "wörker"]),
)
BLOB = Blob("ab" * 32, 300)


@given(RESULTS)
def test_messages_are_compatible_with_protobuf_in_both_directions(result: ReapiResult) -> None:
    data = result.encode()
    message = MESSAGES["ActionResult"].FromString(data)
    assert [(file.path, file.digest.hash, file.digest.size_bytes, file.is_executable) for file in message.output_files] == [
        (file.path, file.blob.digest, file.blob.size, file.is_executable) for file in result.files
    ]
    assert message.stdout_raw == result.stdout
    assert message.execution_metadata.worker == result.worker
    assert message.SerializeToString() == data
    assert ReapiResult.decode(data) == result


def test_unknown_fields_of_a_server_are_skipped() -> None:
    """Check unknown fields of every wire type. bazel-remote sets the worker, and other servers add fields."""
    data = ReapiResult((ReapiFile("a", BLOB),), b"text", None, "epbuild").encode()
    added = b"\x9a\x06\x03abc" + b"\xa0\x06\x96\x01" + b"\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4) + b"\x20\x01"
    worker = b"\x4a\x06\x0a\x04host"
    assert ReapiResult.decode(added + data + worker) == ReapiResult((ReapiFile("a", BLOB),), b"text", None, "host")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x12", "extends past"),
        (b"\x12\x05\x0a", "extends past"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "extends past"),
        (b"\xff" * 11, "ten bytes"),
        (b"\xff" * 9 + b"\x7f", "field number"),
        (b"\x02\x00", "field number"),
        (b"\x13\x00", "group"),
        (b"\x16\x00", "wire type"),
        (b"\x19\x00", "extends past"),
        (b"\x12\x03\x0a\x01a", "no digest"),
        (b"\x12\x06\x0a\x01a\x12\x01\x0a", "extends past"),
        (b"\x12\x05\x0a\x01a\x12\x00", "SHA-256"),
        (b"\x12\x29\x0a\x01\xff\x12\x24\x0a\x22" + b"a" * 34, "UTF-8"),
        (b"\x42\x00", "SHA-256"),
        (b"\x4a\x03\x0a\x01\xff", "UTF-8"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        ReapiResult.decode(data)


def test_number_of_more_than_64_bits_is_refused() -> None:
    """Check this because the lower bits alone may be the size of a signed record. Servers in Go refuse such a message."""
    long = b"\xac" + b"\x82" + b"\x80" * 7  # 300 with nine bytes
    digest = b"\x0a\x40" + b"ab" * 32 + b"\x10" + long
    for last, is_read in ((b"\x00", True), (b"\x02", False)):
        file = b"\x0a\x01a\x12" + bytes([len(digest) + 1]) + digest + last
        data = b"\x12" + bytes([len(file)]) + file
        stdout = b"\x2a" + b"\x82" + b"\x80" * 8 + last + b"ok"
        tag = b"\xaa" + b"\x80" * 8 + last + b"\x02ok"
        for message in (data, stdout, tag):
            if is_read:
                assert ReapiResult.decode(message) in (ReapiResult((ReapiFile("a", BLOB),), b""), ReapiResult((), b"ok"))
                continue
            with pytest.raises(MalformedMessage, match="64 bits"):
                ReapiResult.decode(message)


def test_negative_size_is_refused() -> None:
    message = MESSAGES["ActionResult"]()
    message.output_files.add(path="a").digest.CopyFrom(MESSAGES["Digest"](hash="ab" * 32, size_bytes=-1))
    with pytest.raises(MalformedMessage):
        ReapiResult.decode(message.SerializeToString())


@given(st.binary(max_size=200), st.integers(0, 400), RESULTS)
def test_any_bytes_are_decoded_or_refused(noise: bytes, at: int, result: ReapiResult) -> None:
    data = result.encode()
    for tried in (noise, data[:at] + noise + data[at:], data[:at]):
        try:
            found = ReapiResult.decode(tried)
        except MalformedMessage:
            continue
        assert all(file.blob.size >= 0 and len(file.blob.digest) == 64 for file in found.files)

"""Signed records: only those of a trusted key are used, and each refusal has a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.core.canonical import encode_canonical
from epbuild.core.digest import Blob, hash_document
from epbuild.remote.envelope import MAX_BYTES, Reason, RecordKind, RemoteRecord, Unusable, seal, unseal
from epbuild.remote.keys import SigningKey
from epbuild.remote.reapi import ReapiFile, ReapiResult
from tests.support.remote_caches import COMPILE

OURS, THEIRS = SigningKey.generate(), SigningKey.generate()
TRUST = frozenset((OURS.public,))
BLOB, OTHER, LOG = Blob("ab" * 32, 300), Blob("cd" * 32, 3), Blob("ef" * 32, 7)


def record(files: dict[str, Blob] | None = None, document: object = "tiny") -> dict[str, Any]:
    blobs = {
        name: {"digest": blob.digest, "size": blob.size} for name, blob in (files or {"a.onnx": BLOB, "b.bin": OTHER}).items()
    }
    return {"document": {"members": [document]}, "result": {"artifacts": blobs, "log": {"digest": LOG.digest, "size": LOG.size}}}


RECORD = record()
KEY = hash_document(RECORD["document"])


def sealed(found: dict[str, Any], **changes: Any) -> bytes:
    """Return a record as an attacker with a key may write it, without any validation."""
    signer: SigningKey = changes.pop("signer", OURS)
    files = changes.pop("files", None) or dict(COMPILE.files(found))
    content = {"format": 1, "kind": "compile", "key": KEY, "record": found, "by": signer.public, **changes}
    envelope = {"signature": signer.sign(encode_canonical(content).encode()), **content}
    return ReapiResult(tuple(ReapiFile(*item) for item in files.items()), json.dumps(envelope).encode(), LOG, "w").encode()


def edited(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    result = ReapiResult.decode(data)
    envelope = json.loads(result.stdout)
    change(envelope)
    return replace(result, stdout=json.dumps(envelope).encode()).encode()


def refusal_reason(data: bytes, *, kind: RecordKind = COMPILE, trust: frozenset[str] | None = TRUST) -> Reason | None:
    found = unseal(data, kind, KEY, trust)
    assert not isinstance(found, RemoteRecord)
    return found.reason if isinstance(found, Unusable) else None


def test_record_signed_by_a_trusted_key_is_read_back() -> None:
    found = unseal(seal(COMPILE, KEY, RECORD, OURS), COMPILE, KEY, TRUST)
    assert isinstance(found, RemoteRecord)
    assert found == RemoteRecord(KEY, RECORD, {"a.onnx": BLOB, "b.bin": OTHER}, LOG, OURS.public)
    assert found.blobs == (BLOB, OTHER)


def test_equal_records_have_equal_bytes() -> None:
    assert seal(COMPILE, KEY, RECORD, OURS) == seal(COMPILE, KEY, dict(reversed(RECORD.items())), OURS)


def test_directory_without_trusted_keys_accepts_any_signed_record() -> None:
    assert isinstance(unseal(sealed(RECORD, signer=THEIRS), COMPILE, KEY, None), RemoteRecord)
    assert refusal_reason(edited(sealed(RECORD), lambda envelope: envelope.pop("signature")), trust=None) is Reason.UNSIGNED
    assert (
        refusal_reason(edited(sealed(RECORD), lambda envelope: envelope["record"].update(more=1)), trust=None)
        is Reason.BAD_SIGNATURE
    )


def test_untrusted_record_names_its_key() -> None:
    found = unseal(sealed(RECORD, signer=THEIRS), COMPILE, KEY, TRUST)
    assert found == Unusable(Reason.UNTRUSTED, THEIRS.public)
    assert THEIRS.public in str(found)


def test_poisoned_record_is_refused() -> None:
    """Check a right document with other artifacts. Only the signature can detect that."""

    def poison(envelope: dict[str, Any]) -> None:
        envelope["record"]["result"]["artifacts"]["a.onnx"] = {"digest": OTHER.digest, "size": OTHER.size}

    assert refusal_reason(edited(sealed(RECORD), poison)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("part", ["format", "kind", "key", "by", "record"])
def test_no_part_of_an_envelope_can_be_replaced(part: str) -> None:
    other = {"format": 1.0, "kind": "toolchain", "key": "0" * 64, "by": THEIRS.public, "record": record(document="other")}
    data = edited(sealed(RECORD), lambda envelope: envelope.update({part: other[part]}))
    assert refusal_reason(data) in (Reason.BAD_SIGNATURE, Reason.UNTRUSTED, Reason.MALFORMED)


def test_valid_record_under_another_key_is_refused() -> None:
    other = record(document="other")
    assert refusal_reason(sealed(other, key=hash_document(other["document"]))) is Reason.OTHER_KEY
    assert refusal_reason(sealed(other)) is Reason.OTHER_KEY


def test_record_of_another_kind_is_refused() -> None:
    assert refusal_reason(sealed(RECORD, kind="toolchain")) is Reason.OTHER_KIND
    assert refusal_reason(sealed(RECORD), kind=replace(COMPILE, name="toolchain")) is Reason.OTHER_KIND


@pytest.mark.parametrize(
    "found",
    [{}, {"document": {}}, {"document": [], "result": {}}, {"document": {"members": ["tiny"]}, "result": {"artifacts": {}}}],
)
def test_record_of_another_shape_is_refused(found: dict[str, Any]) -> None:
    assert refusal_reason(sealed(found, files={"a": BLOB})) is Reason.WRONG_SHAPE


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a",
        "/a",
        "C:a",
        "C:\\a",
        "\\\\host\\a",
        "a\\b",
        "a/../../b",
        "a//b",
        "./a",
        "a/",
        "a\0b",
        "nul",
        "a/con.txt",
        "a:b",
        "a.",
    ],
)
def test_unsafe_file_name_is_refused(name: str) -> None:
    assert refusal_reason(sealed(record({name: BLOB}))) is Reason.UNSAFE_NAME


@pytest.mark.parametrize("listed", [{"c": OTHER}, {"a.onnx": BLOB}, {"a.onnx": BLOB, "b.bin": BLOB}])
def test_unlisted_file_is_refused(listed: dict[str, Blob]) -> None:
    """Check this because servers retain only the listed files."""
    assert refusal_reason(sealed(RECORD, files=listed)) is Reason.UNLISTED


@pytest.mark.parametrize("version", [0, 2, 99, -1])
def test_record_of_an_unknown_format_is_a_miss(version: int) -> None:
    assert refusal_reason(sealed(RECORD, format=version)) is None


@pytest.mark.parametrize(
    "stdout",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"\xff",
        b"[" * 100_000,
        b'{"format": 1e999}',
        b'{"format": true}',
        b'{"record": 1}',
    ],
)
def test_malformed_envelope_is_damaged(stdout: bytes) -> None:
    assert refusal_reason(ReapiResult((), stdout).encode()) is Reason.MALFORMED


def test_values_outside_json_invalidate_the_signature() -> None:
    data = edited(sealed(RECORD), lambda envelope: envelope["record"].update(more=float("nan")))
    assert refusal_reason(data) is Reason.BAD_SIGNATURE
    assert (
        refusal_reason(edited(sealed(RECORD), lambda envelope: envelope["record"].update(more="\ud800"))) is Reason.BAD_SIGNATURE
    )


def test_oversized_record_is_refused_unread() -> None:
    assert refusal_reason(bytes(MAX_BYTES + 1)) is Reason.TOO_LARGE


def test_unreadable_record_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="unsafe name"):
        seal(COMPILE, KEY, record({"../a": BLOB}), OURS)
    with pytest.raises(ValueError, match="a different key"):
        seal(COMPILE, "0" * 64, RECORD, OURS)


@given(st.data())
def test_changed_record_equals_the_signed_record_or_is_refused(data: st.DataObject) -> None:
    sound = bytearray(seal(COMPILE, KEY, RECORD, OURS))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sound)))
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if at < len(sound):
                sound[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del sound[at:]
            case _:
                sound[at:at] = data.draw(st.binary(max_size=5))
    found = unseal(bytes(sound), COMPILE, KEY, TRUST)
    if isinstance(found, RemoteRecord):
        assert found.record == RECORD
        assert found.files == {"a.onnx": BLOB, "b.bin": OTHER}

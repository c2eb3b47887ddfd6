"""Format of encrypted files: content that comes back, and every change that is refused."""

from __future__ import annotations

import base64
import hashlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epbuild.core.digest import hash_bytes
from epbuild.runtime.encryption import (
    CHUNK_BYTES,
    MAGIC,
    EncryptionError,
    decrypt,
    parse_key,
    read_header,
)
from tests.support.encrypted_files import KEY, encrypted

NAME = "m/x.bin"
OTHER = bytes(32)
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)


def decrypted(data: bytes, key: bytes = KEY, name: str = NAME, sha256: str | None = None) -> bytes:
    header = read_header(io.BytesIO(data)) if sha256 is None else None
    return b"".join(decrypt(io.BytesIO(data), key, name, sha256 or (header.sha256 if header is not None else ""))[1])


@pytest.mark.parametrize("size", SIZES)
def test_content_comes_back_whatever_the_pieces(size: int) -> None:
    content = hashlib.shake_128(b"content").digest(size)
    whole = encrypted(content, NAME)
    assert encrypted(content, NAME, piece=40_000) == whole  # equal input, equal bytes
    assert decrypted(whole) == content
    header = read_header(io.BytesIO(whole))
    assert header is not None
    assert (header.name, header.size, header.sha256) == ("m/x.bin", size, hashlib.sha256(content).hexdigest())


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(("x", "m/ü.bin", "é" * 100)))
def test_any_content_and_name_come_back(content: bytes, name: str) -> None:
    assert decrypted(encrypted(content, name), name=name) == content


def test_every_flipped_bit_and_every_truncation_is_refused() -> None:
    whole = encrypted(b"weights", NAME)
    for index in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[index // 8] ^= 1 << index % 8
        with pytest.raises(EncryptionError):
            decrypted(bytes(changed))
    for size in range(len(whole)):
        with pytest.raises(EncryptionError):
            decrypted(whole[:size])


def test_missing_additional_and_reordered_chunks_are_refused() -> None:
    whole = encrypted(bytes(3 * CHUNK_BYTES), NAME)
    step = CHUNK_BYTES + 16
    start = len(whole) - 3 * step
    head, chunks = whole[:start], [whole[start + i * step : start + (i + 1) * step] for i in range(3)]
    for order in ([0, 1], [0, 1, 2, 2], [1, 0, 2], [0, 0, 2]):
        with pytest.raises(EncryptionError):
            decrypted(head + b"".join(chunks[i] for i in order))


def test_pieces_before_a_damaged_chunk_are_authentic() -> None:
    content = bytes(2 * CHUNK_BYTES)
    damaged = bytearray(encrypted(content, NAME))
    damaged[-1] ^= 1
    _, pieces = decrypt(io.BytesIO(bytes(damaged)), KEY, "m/x.bin", hash_bytes(content))
    assert next(pieces) == content[:CHUNK_BYTES]
    with pytest.raises(EncryptionError, match="is damaged"):
        next(pieces)


def test_wrong_keys_names_and_files_have_their_own_messages() -> None:
    whole = encrypted(b"weights", NAME)
    for data, key, name, message in (
        (whole, OTHER, "m/x.bin", "was encrypted with another key"),
        (whole, KEY, "m/y.bin", "was encrypted under another name, 'm/x.bin'"),
        (b"plain", KEY, "m/x.bin", "is not encrypted"),
        (MAGIC[:-1] + b"\x02", KEY, "m/x.bin", "unknown format"),
        (whole, b"short", "m/x.bin", "has 5 bytes, but a key has 32"),
    ):
        with pytest.raises(EncryptionError, match=message):
            decrypted(data, key, name)
    with pytest.raises(EncryptionError, match="has another content than the manifest lists"):
        decrypted(whole, sha256=hash_bytes(b"weights of another release"))
    assert read_header(io.BytesIO(b"plain")) is None


def test_each_content_name_and_key_gives_other_bytes() -> None:
    files = {encrypted(b"a", NAME), encrypted(b"b", NAME), encrypted(b"a", "n"), encrypted(b"a", NAME, OTHER)}
    assert len({data[-17:] for data in files}) == 4


def test_keys_are_written_in_hex_or_base64() -> None:
    assert parse_key(f"{KEY.hex()}\n") == parse_key(base64.b64encode(KEY).decode()) == KEY
    wrong = {"": "0 bytes", KEY.hex()[:-2]: "31 bytes", "c2VjcmV0" * 8: "48 bytes", "zz": "neither", "secret!": "neither"}
    for text, message in wrong.items():
        with pytest.raises(EncryptionError, match=message) as raised:
            parse_key(text)
        assert not text or text not in str(raised.value)


def test_protobuf_readers_refuse_the_magic() -> None:
    assert MAGIC[0] & 7 in {6, 7}  # wire types that do not exist

"""Checksums of large blobs: fast, and they detect all damage that a SHA-256 would detect."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob
from epbuild.core.digest import LARGE_BYTES, Blob
from epbuild.core.errors import StoreError

DATA = os.urandom(LARGE_BYTES + 100_003)
DIGEST = hashlib.sha256(DATA).hexdigest()

Read = Callable[[BlobStore, Path], bytes]


def materialized(store: BlobStore, folder: Path) -> bytes:
    copy = folder / f"copy-{os.urandom(4).hex()}"
    store.materialize(DIGEST, copy)
    return copy.read_bytes()


def poured(store: BlobStore, folder: Path) -> bytes:
    pieces: list[bytes] = []
    store.copy(DIGEST, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)


each_way = pytest.mark.parametrize("read", [materialized, poured])


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path / "cache")
    (tmp_path / "model.bin").write_bytes(DATA)
    store.put(tmp_path / "model.bin")
    return store


def blob_of(store: BlobStore, digest: str = DIGEST) -> Path:
    return store.root / "cas" / "sha256" / digest[:2] / digest


def checksum_of(store: BlobStore, digest: str = DIGEST) -> Path:
    return store.root / "cas" / "xxh3-128" / digest[:2] / digest


def checksums(store: BlobStore) -> list[Path]:
    return [path for path in (store.root / "cas" / "xxh3-128").rglob("*") if path.is_file()]


def damage(store: BlobStore) -> bytes:
    """Flip a bit near the end of the blob, and return its new content."""
    wrong = bytearray(DATA)
    wrong[-5] ^= 1
    blob_of(store).chmod(0o644)
    blob_of(store).write_bytes(wrong)
    return bytes(wrong)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_pipe_in_place_of_a_checksum_is_ignored(store: BlobStore) -> None:
    checksum_of(store).unlink()
    os.mkfifo(checksum_of(store))
    assert store.read_bytes(DIGEST) == DATA


def test_large_file_gets_its_checksum_when_it_is_stored(store: BlobStore, tmp_path: Path) -> None:
    assert checksum_of(store).read_text(encoding="ascii") == xxh3_128_hexdigest(DATA)
    other = BlobStore(tmp_path / "other")
    other.put(tmp_path / "model.bin", move=True)
    assert checksum_of(other).read_text(encoding="ascii") == xxh3_128_hexdigest(DATA)


def test_small_file_needs_no_checksum(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "cache")
    (tmp_path / "small").write_bytes(b"small")
    blob = store.put(tmp_path / "small")
    store.materialize(blob.digest, tmp_path / "copy")
    assert checksums(store) == []


@each_way
def test_large_blob_is_read_without_another_sha256(
    store: BlobStore, tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a SHA-256 was found")

    monkeypatch.setattr("hashlib.sha256", refuse)
    assert read(store, tmp_path) == DATA


@each_way
@pytest.mark.parametrize("known", [True, False])
def test_flipped_bit_is_detected_with_and_without_a_checksum(store: BlobStore, tmp_path: Path, read: Read, known: bool) -> None:
    damage(store)
    if not known:
        checksum_of(store).unlink()
    with pytest.raises(DamagedBlob):
        read(store, tmp_path)
    assert not blob_of(store).exists()
    assert checksums(store) == []
    assert list(tmp_path.glob("copy-*")) == []


@each_way
@pytest.mark.parametrize("text", [None, "", "0" * 31, "no checksum at all", "\0" * 32, "ä" * 32])
def test_missing_or_invalid_checksum_is_replaced_after_a_sha256_check(
    store: BlobStore, tmp_path: Path, read: Read, text: str | None
) -> None:
    checksum_of(store).unlink()
    if text is not None:
        checksum_of(store).write_text(text, encoding="utf-8")
    assert read(store, tmp_path) == DATA
    assert checksum_of(store).read_text(encoding="ascii") == xxh3_128_hexdigest(DATA)


def test_wrong_checksum_discards_the_blob_and_is_replaced_on_storing(store: BlobStore, tmp_path: Path) -> None:
    checksum_of(store).write_text("0" * 32, encoding="ascii")
    with pytest.raises(DamagedBlob):
        materialized(store, tmp_path)
    store.put(tmp_path / "model.bin")
    assert materialized(store, tmp_path) == DATA


def test_damage_check_trusts_only_the_sha256(store: BlobStore) -> None:
    checksum_of(store).write_text("0" * 32, encoding="ascii")
    store.check(DIGEST)
    assert checksum_of(store).read_text(encoding="ascii") == xxh3_128_hexdigest(DATA)
    checksum_of(store).write_text(xxh3_128_hexdigest(damage(store)), encoding="ascii")
    with pytest.raises(DamagedBlob):
        store.check(DIGEST)
    assert checksums(store) == []


def test_download_that_becomes_a_blob_gets_its_checksum_on_the_first_read(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "cache")
    store.partials.mkdir(parents=True)
    (store.partials / "download").write_bytes(DATA)
    store.put_partial(store.partials / "download", Blob(DIGEST, len(DATA)))
    assert checksums(store) == []
    assert materialized(store, tmp_path) == DATA
    assert checksums(store) == [checksum_of(store)]


def test_checksum_is_removed_with_its_blob(store: BlobStore) -> None:
    [thing] = store.entries()
    assert store.remove(thing)
    assert checksums(store) == []


@each_way
def test_store_works_without_writable_checksums(tmp_path: Path, read: Read) -> None:
    store = BlobStore(tmp_path / "cache")
    (store.root / "cas").mkdir(parents=True)
    (store.root / "cas" / "xxh3-128").write_bytes(b"in the way")
    (tmp_path / "model.bin").write_bytes(DATA)
    store.put(tmp_path / "model.bin")
    assert read(store, tmp_path) == DATA
    damage(store)
    with pytest.raises(StoreError, match="changed after it was stored"):
        read(store, tmp_path)

"""Hashing and copying of large files: every byte counts at any size, with little memory."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob
from epbuild.core import digest
from epbuild.core.clone import copy_open_file
from epbuild.core.digest import Blob, hash_values

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

MIB = 1 << 20

# A second thread takes over in the middle of a large file, and ends of buffers differ from ends of files.
around_a_buffer = pytest.mark.parametrize("beyond", [-1, 0, 1, MIB - 1, 3 * MIB, 4 * MIB + 17])


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data))


class Dribble(io.RawIOBase):
    """Stream that returns its content in odd pieces, and can fail after the last one."""

    def __init__(self, data: bytes, failure: OSError | None = None) -> None:
        self._rest = memoryview(data)
        self._failure = failure

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._rest and self._failure is not None:
            raise self._failure
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest), 300_007)
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class FullDisk(io.BufferedRandom):
    """File with space for at most `room` bytes."""

    room = digest.LARGE_BYTES + MIB

    def write(self, data: ReadableBuffer, /) -> int:
        if self.tell() + memoryview(data).nbytes > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@around_a_buffer
def test_large_file_of_any_length_is_hashed_correctly(tmp_path: Path, beyond: int) -> None:
    data = os.urandom(digest.LARGE_BYTES + beyond)
    (tmp_path / "weights").write_bytes(data)
    for ahead in (True, False):
        with (tmp_path / "weights").open("rb", buffering=0) as file:
            assert digest.hash_stream(file, ahead=ahead) == blob_of(data)


@around_a_buffer
def test_large_file_survives_a_round_trip_through_the_store(tmp_path: Path, beyond: int) -> None:
    data = os.urandom(digest.LARGE_BYTES + beyond)
    (tmp_path / "model.bin").write_bytes(data)
    store = BlobStore(tmp_path / "cache")
    blob = store.put(tmp_path / "model.bin")
    assert blob == blob_of(data)
    store.materialize(blob.digest, tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == data


def test_source_with_short_reads_is_hashed_completely() -> None:
    data = os.urandom(digest.LARGE_BYTES + 2 * MIB + 5)
    assert digest.hash_stream(Dribble(data)) == blob_of(data)


def test_flipped_bit_near_the_end_of_a_large_blob_is_detected_on_copy(tmp_path: Path) -> None:
    data = bytearray(os.urandom(digest.LARGE_BYTES + 4 * MIB))
    (tmp_path / "model.bin").write_bytes(data)
    store = BlobStore(tmp_path / "cache")
    blob = store.put(tmp_path / "model.bin")
    place = store.root / "cas" / "sha256" / blob.digest[:2] / blob.digest
    data[-5] ^= 1
    place.chmod(0o644)
    place.write_bytes(data)
    with pytest.raises(DamagedBlob):
        store.materialize(blob.digest, tmp_path / "out.bin")
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize("copies", [False, True])
def test_hashing_a_large_file_needs_little_memory(tmp_path: Path, copies: bool) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(64 * MIB)
    with (tmp_path / "weights").open("rb", buffering=0) as source, (tmp_path / "copy").open("x+b") as copy:
        tracemalloc.start()
        try:
            hasher = digest.Hasher(checksum=True)
            if copies:
                copy_open_file(source, copy, hasher)
            else:
                digest.hash_into(source, hasher)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert hasher.size == 64 * MIB
    assert peak < 6 * MIB


def test_unreadable_large_file_is_an_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(OSError, match="Input/output"):
        digest.hash_stream(Dribble(bytes(digest.LARGE_BYTES + 2 * MIB), OSError(errno.EIO, "Input/output error")))
    assert threading.active_count() == before


def test_full_disk_during_a_large_copy_is_an_error_and_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(destination: int, request: int, source: int) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if sys.platform == "linux":  # a clone would write nothing
        monkeypatch.setattr("fcntl.ioctl", refuse)
    (tmp_path / "model.bin").write_bytes(bytes(digest.LARGE_BYTES + 4 * MIB))
    before = threading.active_count()
    with (
        (tmp_path / "model.bin").open("rb", buffering=0) as source,
        FullDisk(io.FileIO(tmp_path / "copy.bin", "x+")) as copy,
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        copy_open_file(source, copy, digest.Hasher())
    assert threading.active_count() == before


@pytest.mark.parametrize("odd", ["name-\udcff", 1 << 70, Path("folder/name-\udcff")])
def test_values_without_a_compact_encoding_have_a_fingerprint(odd: object) -> None:
    assert hash_values([odd, 1]) == hash_values([odd, 1]) != hash_values([odd, 2])

"""Content digests: every change is detected, and no file is read twice without need."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from epbuild.cache.digests import Digests, StatKey, is_unchanged
from epbuild.core import digest
from epbuild.core.errors import StoreError


class NewMemory:
    """Digest cache that starts empty and ends with its test."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[StatKey, str]] = {}

    def get_many(self, paths: Sequence[str]) -> Mapping[str, tuple[StatKey, str]]:
        return {path: self.entries[path] for path in paths if path in self.entries}

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        self.entries.update(entries)


class Readings:
    """Counter of file reads that can run a callback during a read."""

    def __init__(self) -> None:
        self.count = 0
        self.ahead: list[bool] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def digests(self, memory: NewMemory) -> Digests:
        readings = self

        class Counted(Digests):
            threads = 2

            def hash(self, file: digest.Readable, count: digest.Count, *, ahead: bool) -> str:
                readings.count += 1
                readings.ahead.append(ahead)
                found = super().hash(file, count, ahead=ahead)
                readings.meanwhile()
                return found

            def hash_small(self, path: str, size: int) -> str | None:
                readings.count += 1
                found = super().hash_small(path, size)
                readings.meanwhile()
                return found

        return Counted(memory)


@pytest.fixture
def readings() -> Readings:
    return Readings()


@pytest.fixture
def memory() -> NewMemory:
    return NewMemory()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the test's files look a minute old to the code under test, so that their stats can be trusted."""
    monkeypatch.setattr("time.time_ns", lambda: int((time.time() + 60) * 1e9))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_digest_of_each_file_equals_sha256sum(tmp_path: Path, memory: NewMemory) -> None:
    paths = {write(tmp_path / f"{n}.bin", bytes([n]) * n * 700_000): bytes([n]) * n * 700_000 for n in range(5)}
    assert Digests(memory).of_many(paths) == {path: sha256(data) for path, data in paths.items()}


def test_digests_of_mixed_sizes_keep_the_requested_order(tmp_path: Path, memory: NewMemory) -> None:
    sizes = [1, digest.LARGE_BYTES + 1, 0, 2 * digest.LARGE_BYTES, 5000, digest.LARGE_BYTES]
    paths = [write(tmp_path / str(number), bytes([number]) * size) for number, size in enumerate(sizes)]
    found = Digests(memory).of_many(paths)
    assert list(found.items()) == [(path, sha256(path.read_bytes())) for path in paths]


def test_many_small_files_are_hashed_even_if_one_is_unreadable(tmp_path: Path, memory: NewMemory) -> None:
    paths = [write(tmp_path / str(number), b"x" * number) for number in range(450)]
    assert Digests(memory).of_many(paths) == {path: sha256(b"x" * number) for number, path in enumerate(paths)}
    with pytest.raises(StoreError) as failure:
        Digests(NewMemory()).of_many([*paths[:30], tmp_path / "gone", *paths[30:]])
    assert [str(tmp_path / "gone") in problem.message for problem in failure.value.problems] == [True]


def test_large_file_is_read_ahead_only_with_a_spare_core(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    first, second = (write(tmp_path / str(number), bytes([number]) * digest.LARGE_BYTES) for number in range(2))
    small = write(tmp_path / "small", b"small")
    readings.digests(memory).of_many([first, small])
    readings.digests(NewMemory()).of_many([first, second])
    assert readings.ahead == [True, False, False]  # the small one is read at once


@pytest.mark.usefixtures("later")
def test_unchanged_file_is_not_read_again_in_a_later_run(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    path = write(tmp_path / "weights", b"data")
    first = readings.digests(memory).of(path)
    assert readings.digests(memory).of(path) == first
    assert readings.count == 1


@pytest.mark.usefixtures("later")
def test_touched_file_keeps_its_digest(tmp_path: Path, memory: NewMemory) -> None:
    path = write(tmp_path / "weights", b"data")
    first = Digests(memory).of(path)
    os.utime(path, (1, 1))
    assert Digests(memory).of(path) == first


@pytest.mark.skipif(os.name == "nt", reason="Windows has no change time")
@pytest.mark.usefixtures("later")
def test_change_with_equal_size_and_restored_time_is_detected(tmp_path: Path, memory: NewMemory) -> None:
    path = write(tmp_path / "weights", b"data")
    status = path.stat()
    Digests(memory).of(path)
    time.sleep(0.02)  # a file system's clock tick
    path.write_bytes(b"DATA")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert path.stat().st_ino == status.st_ino
    assert Digests(memory).of(path) == sha256(b"DATA")


@pytest.mark.usefixtures("later")
def test_replacement_by_a_file_of_equal_size_is_detected(tmp_path: Path, memory: NewMemory) -> None:
    path = write(tmp_path / "weights", b"data")
    Digests(memory).of(path)
    write(tmp_path / "new", b"DATA").replace(path)
    assert Digests(memory).of(path) == sha256(b"DATA")


def test_recently_written_file_is_read_again(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    path = write(tmp_path / "weights", b"data")
    readings.digests(memory).of(path)
    assert memory.entries == {}
    readings.digests(memory).of(path)
    assert readings.count == 2


@pytest.mark.usefixtures("later")
def test_hard_links_to_one_file_are_read_once(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    first = write(tmp_path / "a", b"shared weights")
    second = tmp_path / "b"
    second.hardlink_to(first)
    assert readings.digests(memory).of_many([first, second, first]) == dict.fromkeys([first, second], sha256(b"shared weights"))
    assert readings.count == 1
    assert readings.digests(memory).of(second) == sha256(b"shared weights")
    assert readings.count == 1


def test_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    path = write(tmp_path / "weights", b"half")

    def finish_writing() -> None:
        readings.meanwhile = lambda: None
        path.write_bytes(b"half and half")

    readings.meanwhile = finish_writing
    assert readings.digests(memory).of(path) == sha256(b"half and half")
    assert readings.count == 2


def test_constantly_changing_file_is_an_error_with_its_name(tmp_path: Path, memory: NewMemory, readings: Readings) -> None:
    path = write(tmp_path / "weights", b"")

    def grow() -> None:
        with path.open("ab") as file:
            file.write(b"x")

    readings.meanwhile = grow
    with pytest.raises(StoreError, match="weights changed while it was being read") as failure:
        readings.digests(memory).of(path)
    assert failure.value.problems[0].code == "EPB505"
    assert readings.count == 3


def test_all_unreadable_files_are_reported_together(tmp_path: Path, memory: NewMemory) -> None:
    (tmp_path / "folder").mkdir()
    good = write(tmp_path / "good", b"data")
    with pytest.raises(StoreError) as failure:
        Digests(memory).of_many([tmp_path / "gone", tmp_path / "folder", good])
    assert [problem.code for problem in failure.value.problems] == ["EPB504", "EPB504"]
    assert "gone" in str(failure.value)
    assert "folder" in str(failure.value)


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes in the file system")
def test_named_pipe_in_place_of_a_model_does_not_hang_the_build(tmp_path: Path, memory: NewMemory) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        Digests(memory).of(tmp_path / "pipe")


def test_input_that_changes_during_an_action_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", b"before")
    key = StatKey.of(path)
    assert is_unchanged(path, key)
    path.write_bytes(b"afterwards")
    assert not is_unchanged(path, key)
    path.unlink()
    assert not is_unchanged(path, key)


def test_new_hard_link_does_not_cause_another_read(tmp_path: Path) -> None:
    memory, path = NewMemory(), tmp_path / "model"
    path.write_bytes(b"content")
    os.utime(path, ns=(1, 1))
    memory.put_many({str(path): (StatKey.of(path), "the digest")})
    remembering = Digests(memory)
    with remembering.relinking([path]):
        os.link(path, tmp_path / "staged")
    assert remembering.of(path) == "the digest"
    with remembering.relinking([path]):
        path.write_bytes(b"changed")
    assert remembering.of(path) == hashlib.sha256(b"changed").hexdigest()

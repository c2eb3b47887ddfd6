"""Blob store: its guarantees under failures of processes and of the disk."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.core.digest import Blob
from epbuild.core.errors import Cancelled, StoreError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

posix_only = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals or permissions")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="clones are made on Linux")


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "cache")


def stored_files(store: BlobStore) -> list[Path]:
    return [path for path in (store.root / "cas" / "sha256").rglob("*") if path.is_file()]


def stored(store: BlobStore, data: bytes) -> Blob:
    """Store `data` from a file."""
    source = store.root.with_name("source")
    source.write_bytes(data)
    return store.put(source)


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_stored_file_is_restored_byte_for_byte_by_its_sha256(store: BlobStore, tmp_path: Path) -> None:
    data = os.urandom(3 * 1024 * 1024 + 17)
    (tmp_path / "model.bin").write_bytes(data)
    blob = store.put(tmp_path / "model.bin")
    assert blob == Blob(hashlib.sha256(data).hexdigest(), len(data))
    assert store.has(blob.digest, blob.size)
    store.materialize(blob.digest, tmp_path / "new" / "folder" / "copy.bin")
    assert (tmp_path / "new" / "folder" / "copy.bin").read_bytes() == data
    assert store.read_bytes(blob.digest) == data


def test_download_inside_the_store_becomes_a_blob_without_a_copy(store: BlobStore) -> None:
    store.partials.mkdir(parents=True)
    download = store.partials / "download"
    download.write_bytes(b"arrived")
    inode = download.stat().st_ino
    blob = Blob(hashlib.sha256(b"arrived").hexdigest(), len(b"arrived"))
    store.put_partial(download, blob)
    assert store.find(blob.digest) == blob
    assert store.read_bytes(blob.digest) == b"arrived"
    assert [path.stat().st_ino for path in stored_files(store)] == [inode]
    assert not download.exists()


def test_content_that_is_already_stored_is_not_stored_twice(store: BlobStore) -> None:
    blob = stored(store, b"arrived")
    (place,) = stored_files(store)
    before = place.stat()
    store.partials.mkdir(parents=True)
    (store.partials / "download").write_bytes(b"arrived")
    store.put_partial(store.partials / "download", blob)
    assert place.stat().st_ino == before.st_ino
    assert list(store.partials.iterdir()) == []


def test_storing_a_blob_reads_nothing_and_keeps_it(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"content")
    place = store.place(blob.digest)
    before = place.stat()
    counted: list[int] = []
    assert store.put(place, count=counted.append) == blob
    assert (counted, place.stat().st_ino) == ([7], before.st_ino)
    (tmp_path / blob.digest).write_bytes(b"another file of this name")
    assert store.put(tmp_path / blob.digest) != blob


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_pipe_in_place_of_a_blob_is_an_immediate_error(store: BlobStore) -> None:
    blob = stored(store, b"arrived")
    (place,) = stored_files(store)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(StoreError, match="Not a regular file"):
        store.read_bytes(blob.digest)


def of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize("size", [0, 1, 3 * 1024 * 1024 + 17, 9 * 1024 * 1024])
def test_movable_file_becomes_the_blob_without_a_copy(store: BlobStore, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = tmp_path / "made.bin"
    path.write_bytes(data)
    os.utime(path, (0, 0))  # an old file becomes a new blob, or `gc` would treat it as unused
    inode = path.stat().st_ino
    blob = store.put(path, move=True)
    assert blob == of(data)
    assert store.read_bytes(blob.digest) == data
    [thing] = store.entries()
    assert thing.used_ns > time.time_ns() - 60_000_000_000
    assert list((store.root / "cas" / "tmp").iterdir()) == []
    if os.name != "nt":
        [place] = stored_files(store)
        assert (place.stat().st_ino, stat.S_IMODE(place.stat().st_mode)) == (inode, 0o444)
        assert not path.exists()


@contextmanager
def hard_linked(path: Path) -> Iterator[Path]:
    other = path.with_name("another name")
    os.link(path, other)
    yield other


@contextmanager
def target_of_a_link(path: Path) -> Iterator[Path]:
    other = path.rename(path.with_name("file of the link"))
    path.symlink_to(other.name)
    yield other


@contextmanager
def locked_by_a_reader(path: Path) -> Iterator[Path]:
    import fcntl

    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield path


@contextmanager
def unmovable(path: Path) -> Iterator[Path]:
    """Make renames of a file fail, as across file systems or out of a read-only folder."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        yield path


@posix_only
@pytest.mark.parametrize("arrange", [hard_linked, target_of_a_link, locked_by_a_reader, unmovable])
def test_file_still_in_use_is_copied_and_never_shared(
    store: BlobStore, tmp_path: Path, arrange: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    path = tmp_path / "made.bin"
    path.write_bytes(b"as built")
    with arrange(path) as other:
        blob = store.put(path, move=True)
        assert blob == of(b"as built")
        assert other.read_bytes() == b"as built"
        other.write_bytes(b"edited by a user")
        assert path.read_bytes() == b"edited by a user"
    assert stat.S_IMODE(other.stat().st_mode) & stat.S_IWUSR
    assert store.read_bytes(blob.digest) == b"as built"
    assert not any(place.is_symlink() for place in stored_files(store))
    assert list((store.root / "cas" / "tmp").iterdir()) == []


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on another file system."""
    memory = Path("/dev/shm")
    if not (os.access(memory, os.W_OK) and memory.stat().st_dev != tmp_path.stat().st_dev):
        pytest.skip("there is no other file system")
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def test_file_on_another_file_system_is_copied(store: BlobStore, other_file_system: Path) -> None:
    (other_file_system / "made.bin").write_bytes(b"as built")
    assert store.put(other_file_system / "made.bin", move=True) == of(b"as built")
    assert store.read_bytes(of(b"as built").digest) == b"as built"
    assert (other_file_system / "made.bin").read_bytes() == b"as built"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs permissions that bind")
@pytest.mark.parametrize("mode", [0o444, 0o644])
def test_unwritable_and_unmovable_file_is_still_stored(store: BlobStore, tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "made.bin").write_bytes(b"as built")
    (folder / "made.bin").chmod(mode)
    folder.chmod(0o555)
    try:
        assert store.put(folder / "made.bin", move=True) == of(b"as built")
    finally:
        folder.chmod(0o755)
    assert store.read_bytes(of(b"as built").digest) == b"as built"


def test_moving_in_known_content_keeps_the_existing_blob(store: BlobStore, tmp_path: Path) -> None:
    stored(store, b"same")
    [place] = stored_files(store)
    before = place.stat()
    (tmp_path / "made.bin").write_bytes(b"same")
    assert store.put(tmp_path / "made.bin", move=True) == of(b"same")
    assert [path.stat().st_ino for path in stored_files(store)] == [before.st_ino]
    assert list((store.root / "cas" / "tmp").iterdir()) == []


def test_moving_in_the_content_of_a_damaged_blob_replaces_the_blob(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"whole content")
    [place] = stored_files(store)
    overwrite(place, b"whole")
    (tmp_path / "made.bin").write_bytes(b"whole content")
    assert store.put(tmp_path / "made.bin", move=True) == blob
    assert store.read_bytes(blob.digest) == b"whole content"
    assert (store.root / "cas" / "damaged" / blob.digest).read_bytes() == b"whole"


def test_only_a_valid_digest_finds_a_blob(store: BlobStore) -> None:
    blob = stored(store, b"content")
    assert store.find(blob.digest) == blob
    assert store.find("0" * 64) is None
    assert store.find("../../outside") is None


def test_empty_file_is_stored_as_a_blob(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"")
    store.materialize(blob.digest, tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


def test_changing_a_materialized_file_never_changes_the_store(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"as built")
    copy = tmp_path / "copy"
    store.materialize(blob.digest, copy)
    copy.write_bytes(b"edited by a user")
    assert copy.stat().st_nlink == 1
    assert store.read_bytes(blob.digest) == b"as built"


@posix_only
def test_blobs_are_read_only_and_materialized_files_are_writable(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"content")
    previous = os.umask(0o022)
    try:
        store.materialize(blob.digest, tmp_path / "copy")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o644
    assert [stat.S_IMODE(path.stat().st_mode) for path in stored_files(store)] == [0o444]


def test_storing_equal_content_keeps_the_existing_blob(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    stored(store, b"same")
    (place,) = stored_files(store)
    before = place.stat()
    store.put(tmp_path / "a")
    assert place.stat().st_ino == before.st_ino
    assert list((store.root / "cas" / "tmp").iterdir()) == []


def test_altered_blob_is_never_returned_and_can_be_stored_again(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"the real context binary")
    (place,) = stored_files(store)
    overwrite(place, b"a false context binary!")
    with pytest.raises(DamagedBlob) as failure:
        store.materialize(blob.digest, tmp_path / "out.bin")
    assert failure.value.problems[0].code == "EPB502"
    assert not (tmp_path / "out.bin").exists()
    assert not store.has(blob.digest, blob.size)
    assert (store.root / "cas" / "damaged" / blob.digest).read_bytes() == b"a false context binary!"

    stored(store, b"the real context binary")
    store.materialize(blob.digest, tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == b"the real context binary"


def test_reading_an_altered_blob_into_memory_is_refused(store: BlobStore) -> None:
    blob = stored(store, b"right")
    (place,) = stored_files(store)
    overwrite(place, b"wrong")
    with pytest.raises(DamagedBlob):
        store.read_bytes(blob.digest)
    with pytest.raises(MissingBlob):
        store.read_bytes(blob.digest)


@pytest.mark.parametrize("size", [0, 5, 3_000_000, 11_000_017])
def test_copied_blob_arrives_in_order_and_in_small_pieces(store: BlobStore, size: int) -> None:
    data = os.urandom(size)
    blob = stored(store, data)
    arrived, largest = bytearray(), 0

    def write(piece: memoryview) -> None:
        nonlocal largest
        arrived.extend(piece)
        largest = max(largest, len(piece))

    store.copy(blob.digest, write)
    assert arrived == data
    assert largest <= 1 << 20


@pytest.mark.parametrize("size", [9, 11_000_017])
def test_copying_an_altered_blob_fails_and_sets_the_blob_aside(store: BlobStore, size: int) -> None:
    blob = stored(store, b"s" * size)
    (place,) = stored_files(store)
    overwrite(place, b"s" * (size - 1) + b"!")
    arrived = bytearray()
    with pytest.raises(DamagedBlob):
        store.copy(blob.digest, arrived.extend)
    assert len(arrived) < size  # never all of it
    assert (store.root / "cas" / "damaged" / blob.digest).stat().st_size == size
    with pytest.raises(MissingBlob):
        store.copy(blob.digest, arrived.extend)


@pytest.mark.parametrize("size", [9, 11_000_017])
def test_failing_consumer_of_a_copy_is_not_reported_as_a_store_error(store: BlobStore, size: int) -> None:
    blob = stored(store, b"s" * size)
    before = threading.active_count()
    left = 9_000_000 if size > 9_000_000 else 0

    def refuse(piece: memoryview) -> None:
        nonlocal left
        left -= len(piece)
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        store.copy(blob.digest, refuse)
    assert threading.active_count() == before
    assert store.has(blob.digest, blob.size)


def test_read_error_during_a_copy_is_reported_as_a_store_error(store: BlobStore) -> None:
    class BadDisk(io.FileIO):
        def readinto(self, buffer: WriteableBuffer) -> int:
            raise OSError(errno.EIO, "Input/output error")

    blob = stored(store, b"content")
    (place,) = stored_files(store)

    class BadStore(BlobStore):
        def _open(self, digest: str) -> io.FileIO:
            return BadDisk(place)

    with pytest.raises(StoreError, match="Input/output error") as failure:
        BadStore(store.root).copy(blob.digest, bytearray().extend)
    assert failure.value.problems[0].code == "EPB503"


def test_check_reads_the_whole_blob_and_sets_aside_an_altered_blob(store: BlobStore) -> None:
    bad = stored(store, b"right")
    (place,) = stored_files(store)
    sound = stored(store, b"s" * 3_000_000)
    read: list[int] = []
    store.check(sound.digest, read.append)
    assert sum(read) == 3_000_000
    overwrite(place, b"wrong")
    with pytest.raises(DamagedBlob):
        store.check(bad.digest)
    with pytest.raises(MissingBlob):
        store.check(bad.digest)
    store.check(sound.digest)


def test_check_can_be_cancelled_in_the_middle(store: BlobStore) -> None:
    blob = stored(store, b"s" * 3_000_000)

    def stop(count: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        store.check(blob.digest, stop)
    assert store.has(blob.digest, blob.size)


def test_truncated_blob_counts_as_missing_and_is_replaced(store: BlobStore) -> None:
    blob = stored(store, b"whole content")
    (place,) = stored_files(store)
    overwrite(place, b"whole")
    assert not store.has(blob.digest, blob.size)
    stored(store, b"whole content")
    assert store.has(blob.digest, blob.size)
    assert store.read_bytes(blob.digest) == b"whole content"


def test_missing_blob_error_names_the_digest(store: BlobStore, tmp_path: Path) -> None:
    digest = "0" * 64
    with pytest.raises(MissingBlob, match=digest):
        store.materialize(digest, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tampered_digest_cannot_name_a_file_outside_the_store(store: BlobStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")
    digest = f"../../../../{secret.name}"
    assert not store.has(digest, 7)
    with pytest.raises(MissingBlob):
        store.materialize(digest, tmp_path / "out")


def test_materializing_never_overwrites_a_file(store: BlobStore, tmp_path: Path) -> None:
    blob = stored(store, b"built")
    (tmp_path / "mine").write_bytes(b"precious")
    with pytest.raises(StoreError, match="mine"):
        store.materialize(blob.digest, tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == b"precious"


def test_concurrent_writers_never_expose_a_partial_blob(store: BlobStore, tmp_path: Path) -> None:
    contents = [bytes([number]) * 300_000 for number in range(6)]
    blobs = [Blob(hashlib.sha256(data).hexdigest(), len(data)) for data in contents]
    for number, data in enumerate(contents):
        (tmp_path / f"{number}.bin").write_bytes(data)
    writing = threading.Event()
    writing.set()
    failures: list[Exception] = []
    seen = 0

    def write() -> None:
        try:
            for number in range(len(contents)):
                store.put(tmp_path / f"{number}.bin")
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    def read() -> None:
        nonlocal seen
        try:
            while True:
                last_round = not writing.is_set()
                for blob in blobs:
                    if store.has(blob.digest, blob.size):
                        store.read_bytes(blob.digest)
                        seen += 1
                if last_round:
                    return
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write) for _ in range(4)]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    writing.clear()
    reader.join()
    assert failures == []
    assert seen >= len(blobs)
    assert len(stored_files(store)) == len(blobs)


@posix_only
def test_killed_copy_leaves_no_blob(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "pipe"
    os.mkfifo(source)
    code = (
        "import sys; from pathlib import Path; from epbuild.cache.blobs import BlobStore; "
        "BlobStore(Path(sys.argv[1])).put(Path(sys.argv[2]))"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, store.root, source])
    with source.open("wb", buffering=0) as pipe:
        pipe.write(b"x" * 100_000)
        drafts = store.root / "cas" / "tmp"
        deadline = time.monotonic() + 5
        while not (drafts.is_dir() and list(drafts.iterdir())) and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait(5) == -signal.SIGKILL
    (draft,) = drafts.iterdir()
    assert draft.name.startswith(f"{writer.pid}-")
    assert stored_files(store) == []

    store.sweep()
    assert not draft.exists()


@posix_only
def test_killed_writer_leaves_no_blob_and_a_live_writer_continues(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "made.bin").write_bytes(b"as built")
    code = """if True:
        import os, sys, time
        from pathlib import Path
        from epbuild.cache.blobs import BlobStore

        def wait(descriptor):  # the file has been moved, and is not published yet
            print("moved", flush=True)
            time.sleep(60)

        os.fsync = wait
        BlobStore(Path(sys.argv[1])).put(Path(sys.argv[2]), move=True)
    """
    taker = subprocess.Popen([sys.executable, "-c", code, store.root, tmp_path / "made.bin"], stdout=subprocess.PIPE)
    assert taker.stdout is not None
    with taker.stdout as said:
        assert said.readline() == b"moved\n"
        [draft] = (store.root / "cas" / "tmp").iterdir()
        store.sweep()
        assert draft.read_bytes() == b"as built"
        taker.kill()
        assert taker.wait(5) == -signal.SIGKILL
    assert stored_files(store) == []
    store.sweep()
    assert not draft.exists()


@pytest.mark.parametrize("store_file", [BlobStore.put, partial(BlobStore.put, move=True)])
def test_full_disk_is_reported_with_path_and_hint_and_leaves_no_blob(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_file: Callable[[BlobStore, Path], Blob]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "model.bin").write_bytes(b"weights")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError) as failure:
        store_file(store, tmp_path / "model.bin")
    (problem,) = failure.value.problems
    assert problem.code == "EPB503"
    assert str(tmp_path / "model.bin") in problem.message
    assert str(store.root) in problem.message
    assert problem.hint is not None
    assert "EPBUILD_CACHE_DIR" in problem.hint
    assert "space" in problem.hint
    assert stored_files(store) == []
    assert list((store.root / "cas" / "tmp").iterdir()) == []


@pytest.mark.parametrize("store_file", [BlobStore.put, partial(BlobStore.put, move=True)])
def test_cache_directory_that_cannot_be_created_is_an_error_with_a_hint(
    tmp_path: Path, store_file: Callable[[BlobStore, Path], Blob]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="EPBUILD_CACHE_DIR"):
        store_file(BlobStore(tmp_path / "file" / "cache"), tmp_path / "file")


@pytest.mark.parametrize("store_file", [BlobStore.put, partial(BlobStore.put, move=True)])
def test_missing_source_is_not_reported_as_a_cache_error(
    store: BlobStore, tmp_path: Path, store_file: Callable[[BlobStore, Path], Blob]
) -> None:
    with pytest.raises(StoreError, match=r"gone\.bin") as failure:
        store_file(store, tmp_path / "gone.bin")
    assert "EPBUILD_CACHE_DIR" not in str(failure.value)


@linux_only
def test_clone_is_used_and_checked_on_a_file_system_that_supports_clones(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(1 << 17)  # smaller files are copied without an attempt to clone
    cloned = content

    def clone(destination: int, request: int, source: int) -> int:
        os.pwrite(destination, cloned, 0)
        return 0

    monkeypatch.setattr("fcntl.ioctl", clone)
    blob = stored(store, content)
    store.materialize(blob.digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    cloned = b"x" * len(content)
    with pytest.raises(DamagedBlob):
        store.materialize(blob.digest, tmp_path / "second")


@linux_only
def test_file_system_without_clones_gets_a_copy(store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(destination: int, request: int, source: int) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("fcntl.ioctl", refuse)
    content = bytes(1 << 17)
    blob = stored(store, content)
    for name in ("first", "second"):
        store.materialize(blob.digest, tmp_path / name)
        assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, (9 << 20) + 3])
def test_stream_is_stored_only_if_its_digest_matches(store: BlobStore, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    blob = Blob(hashlib.sha256(data).hexdigest(), size)
    for other in (data + b"!", data[:-1] + b"?" if data else b"?", data[:-1] if data else b"??"):
        assert not store.put_stream(blob, io.BytesIO(other))
        assert store.find(blob.digest) is None
    assert store.put_stream(blob, io.BytesIO(data))
    assert store.read_bytes(blob.digest) == data
    assert store.put_stream(blob, io.BytesIO(data))
    assert list((store.root / "cas" / "tmp").iterdir()) == []
    assert b"".join(bytes(piece) for piece in store.pieces(blob.digest)) == data


def test_endless_stream_is_not_read_to_its_end(store: BlobStore) -> None:
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: WriteableBuffer) -> int:
            return memoryview(buffer).nbytes

    assert not store.put_stream(Blob("0" * 64, 3 << 20), Endless())


@pytest.mark.parametrize("size", [1, 1 << 20, (9 << 20) + 3])
@pytest.mark.parametrize("at", [0, -1])
def test_reader_never_receives_all_pieces_of_a_damaged_blob(store: BlobStore, size: int, at: int) -> None:
    """Check this so that a reader that copies the pieces never has a complete damaged blob."""
    data = bytearray(size)
    blob = Blob(hashlib.sha256(data).hexdigest(), size)
    store.put_stream(blob, io.BytesIO(data))
    data[at] ^= 1
    place = store.place(blob.digest)
    place.chmod(0o644)
    place.write_bytes(data)
    passed = bytearray()
    with pytest.raises(DamagedBlob):
        deque(map(passed.extend, store.pieces(blob.digest)), maxlen=0)
    assert len(passed) < size


def test_own_blobs_are_known_until_their_file_changes(store: BlobStore) -> None:
    blob = stored(store, b"weights")
    assert store.has_written(blob.digest)
    assert not BlobStore(store.root).has_written(blob.digest)
    store.put(store.place(blob.digest))  # used again
    assert store.has_written(blob.digest)
    overwrite(store.place(blob.digest), b"damaged")
    assert not store.has_written(blob.digest)


def test_damaged_blobs_that_are_stored_again_do_not_count_as_written(store: BlobStore) -> None:
    blob = stored(store, b"weights")
    overwrite(store.place(blob.digest), b"changed")
    other = BlobStore(store.root)
    stored(other, b"weights")  # as large as the damaged file, which is not read
    assert not other.has_written(blob.digest)

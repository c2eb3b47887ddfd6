"""The blob store: files by their SHA-256.

A blob is never half-written, and checked whenever it is read.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from epbuild.cache.checksums import Check, Checksums
from epbuild.cache.drafts import Draft, Drafts, discard, touch
from epbuild.cache.entries import CacheEntry, files_below
from epbuild.cache.errors import DamagedBlob, MissingBlob, explained, failure
from epbuild.core.atomic import rename, write_new
from epbuild.core.clone import Copier
from epbuild.core.digest import LARGE_BYTES, Blob, Readable, Reading, Write, digest_of, read

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
"""Up to this size a blob is copied at once: most of the time that its copy takes is the creation of the file."""
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)


class BlobSource(Protocol):
    """Where outputs have blobs from; each method is as `BlobStore` has it."""

    def materialise(self, digest: str, destination: str | Path) -> None: ...

    def copy(self, digest: str, write: Write) -> None: ...


class BlobStore:
    """The blobs below `root`. Any number of threads and processes may use one root at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects = root / "cas" / "sha256"
        self._damaged = root / "cas" / "damaged"
        self._drafts = Drafts(root / "cas" / "tmp")
        self._checksums = Checksums(root / "cas" / "xxh3-128", self._drafts)
        self._copier = Copier()

    @property
    def partials(self) -> Path:
        """The folder for files that grow over several runs, on the file system of the blobs; made by its users."""
        return self.root / "cas" / "partial"

    def add(self, path: Path) -> Blob:
        """Store the content of the file at `path`, which is read once. Raises StoreError."""
        with explained(f"read {path}", elsewhere=None):
            source = path.open("rb", buffering=0)
        with source, explained(f"store {path} in {self.root}"), self._drafts.new() as draft:
            reading = _naming(source)
            self._copier.copy(source, draft.file, reading)
            return self._keep_read(draft, reading)

    def take(self, path: Path) -> Blob:
        """Store the file at `path`, to which nobody writes any more; it may be at `path` no longer, also when this fails.

        On the file system of the store it is moved there, and nothing is copied. Raises StoreError.
        """
        with explained(f"store {path} in {self.root}"), self._drafts.moved(path) as draft:
            if draft is not None:
                reading = _naming(draft.file)
                read(draft.file, reading)
                return self._keep_read(draft, reading)
        return self.add(path)

    def adopt(self, path: Path, blob: Blob) -> None:
        """Make the file at `path`, which is closed and known to hold `blob`, that blob; it is at `path` no longer.

        The file must lie in `partials`, so that it need not be copied. Raises StoreError; then it stays where it is.
        """
        with explained(f"store {path} in {self.root}"), path.open("r+b") as file:
            touch(path)  # it may have arrived long ago
            self._keep(Draft(path, file), blob)
        with suppress(OSError):  # the same content was there before
            discard(path)

    def receive(self, blob: Blob, source: Readable) -> bool:
        """Store what `source` has to its end, checked while it comes; False, and nothing is stored, where it is not `blob`.

        Raises StoreError, and what reading raises.
        """
        size = 0

        def write(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)
            if size > blob.size:
                raise _Longer
            draft.file.write(piece)

        with explained(f"store {blob.digest} in {self.root}"), self._drafts.new() as draft:
            reading = Reading(checksum=blob.size >= LARGE_BYTES)
            try:
                read(source, reading, write)
            except _Longer:
                return False
            if reading.blob != blob:
                return False
            self._keep_read(draft, reading)
            return True

    def find(self, digest: str) -> Blob | None:
        """The blob of that name, of whatever size it has; looks at no content."""
        try:
            return Blob(digest, self.place(digest).stat().st_size)
        except (OSError, MissingBlob):
            return None

    def has(self, digest: str, size: int) -> bool:
        """Whether a blob of that name and size in bytes is there; looks at no content."""
        try:
            return os.stat(self._name(digest)).st_size == size  # noqa: PTH116 - ten thousands are asked for
        except (OSError, MissingBlob):
            return False

    def materialise(self, digest: str, destination: str | Path) -> None:
        """Make `destination`, which must not exist, an ordinary writable file with the blob's content.

        The file shares no link with the store, so that changing it cannot change the blob. Missing parent directories
        are made. Raises MissingBlob, DamagedBlob, and StoreError when it cannot be written; then no file is left.
        """
        data = self._read_small(digest)
        if data is not None:
            try:
                write_new(destination, data)
            except OSError as error:
                raise failure(error, f"write {destination}", elsewhere=None) from error
            return
        destination = Path(destination)
        with self._open(digest) as source, explained(f"write {destination}", elsewhere=None):
            identity = os.fstat(source.fileno())
            check = Check(self._checksums, digest, identity.st_size)
            copy = _new(destination)
            try:
                with copy:
                    self._copier.copy(source, copy, check.reading)
            except BaseException:
                destination.unlink(missing_ok=True)
                raise
        if not check.passed():
            destination.unlink(missing_ok=True)
            raise self._damaged_blob(digest, identity)

    def _read_small(self, digest: str) -> bytes | None:
        """The content of a blob, checked; None where that is too much to be read before anything is written. Raises what `copy` does."""
        place = self._name(digest)
        try:
            descriptor = os.open(place, _READ)
            try:
                identity = os.fstat(descriptor)
                if identity.st_size > _SMALL_BYTES:
                    return None
                data = os.read(descriptor, identity.st_size + 1)
                while len(data) < identity.st_size and (more := os.read(descriptor, identity.st_size)):
                    data += more
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise MissingBlob(digest, self.root) from None
        except OSError as error:
            raise failure(error, f"read {place}") from error
        if digest_of(data) != digest:
            raise self._damaged_blob(digest, identity)
        return data

    def copy(self, digest: str, write: Write) -> None:
        """Give the blob's content to `write`, in order and in pieces of at most 1 MiB, in constant memory.

        Whether the content is right shows after the last piece: raises DamagedBlob then. Raises MissingBlob, StoreError when it
        cannot be read, and what `write` raises.
        """
        with self._open(digest) as source:
            identity = os.fstat(source.fileno())
            check = Check(self._checksums, digest, identity.st_size)
            read(_Watched(source, f"read {digest} in the store {self.root}"), check.reading, write)
        if not check.passed():
            raise self._damaged_blob(digest, identity)

    def pieces(self, digest: str) -> Iterator[memoryview]:
        """The blob's content in pieces of at most 1 MiB, each valid until the next; the last one only if all of it is right.

        So who passes them on has passed on no whole content that is wrong. Raises MissingBlob, DamagedBlob, StoreError.
        """
        with self._open(digest) as source:
            identity = os.fstat(source.fileno())
            check = Check(self._checksums, digest, identity.st_size)
            buffer, spare = (memoryview(bytearray(min(_PIECE_BYTES, identity.st_size + 1))) for _ in range(2))
            held = buffer[:0]
            while count := _Watched(source, f"read {digest} in the store {self.root}").readinto(buffer):
                check.reading.update(buffer[:count])
                if held:
                    yield held
                held, buffer, spare = buffer[:count], spare, buffer
        if not check.passed():
            raise self._damaged_blob(digest, identity)
        if held:
            yield held

    def read_bytes(self, digest: str) -> bytes:
        """The blob's content, for blobs that fit in memory. Raises MissingBlob, DamagedBlob, StoreError."""
        with self._open(digest) as source:
            with explained(f"read {digest} in the store {self.root}"):
                data = source.read()
            identity = os.fstat(source.fileno())
        if digest_of(data) != digest:
            raise self._damaged_blob(digest, identity)
        return data

    def check(self, digest: str, read_so_far: Callable[[int], None] = lambda count: None) -> None:
        """Read a blob through, in constant memory, and set it aside if its SHA-256 is not what it is named by.

        `read_so_far` takes how many bytes were read each time; what it raises ends it. Raises MissingBlob, DamagedBlob, StoreError.
        """
        with self._open(digest) as source:
            reading = _naming(source)
            read(_Watched(source, f"read {digest} in the store {self.root}", read_so_far), reading, ahead=False)
            identity = os.fstat(source.fileno())
        if reading.digest != digest:
            raise self._damaged_blob(digest, identity)
        self._checksums.note(digest, reading.checksum)

    def entries(self) -> Iterator[CacheEntry]:
        """Every blob, with the time when it was last stored. Raises StoreError."""
        with explained(f"list the store {self.root}"):
            for path, status in files_below(self._objects):
                if _DIGEST.fullmatch(path.name):
                    yield CacheEntry("blob", path.name, status.st_size, status.st_mtime_ns)

    def remove(self, entry: CacheEntry) -> bool:
        """Remove a blob that was listed, unless it was stored again since, and return whether it is gone. Raises StoreError."""
        with explained(f"remove {entry.name} from the store {self.root}"):
            self._checksums.forget(entry.name)
            return self._drafts.withdraw(self.place(entry.name), entry.used_ns)

    def sweep(self) -> None:
        """Remove what killed processes left half-written, once it is a day old. Raises StoreError."""
        with explained(f"clean up the store {self.root}"):
            self._drafts.sweep()

    def place(self, digest: str) -> Path:
        """Where the blob of that name is, or would be: a file to be read, or linked to, and never written. Raises MissingBlob."""
        return Path(self._name(digest))

    def _name(self, digest: str) -> str:
        # Digests come from documents on disk: one that is no digest must not name a path outside the store.
        if not _DIGEST.fullmatch(digest):
            raise MissingBlob(digest, self.root)
        return f"{self._objects}{os.sep}{digest[:2]}{os.sep}{digest}"

    def _keep_read(self, draft: Draft, reading: Reading) -> Blob:
        blob = reading.blob
        self._keep(draft, blob)
        self._checksums.note(blob.digest, reading.checksum)
        return blob

    def _keep(self, draft: Draft, blob: Blob) -> None:
        place = self.place(blob.digest)
        if self.has(blob.digest, blob.size):
            if touch(place):
                return
        else:
            with suppress(FileNotFoundError):
                self._set_aside(blob.digest, place.stat())
        try:
            draft.publish(place, read_only=True)
        except PermissionError:
            # Windows replaces no read-only file; where another writer was first, its blob is as good as this one.
            if not self.has(blob.digest, blob.size):
                raise

    def _open(self, digest: str) -> io.FileIO:
        place = self.place(digest)
        with explained(f"read {place}"):
            try:
                return place.open("rb", buffering=0)
            except FileNotFoundError:
                raise MissingBlob(digest, self.root) from None

    def _damaged_blob(self, digest: str, identity: os.stat_result) -> DamagedBlob:
        """What to raise for a blob that was opened and is not what it is named by; it is set aside."""
        self._set_aside(digest, identity)
        return DamagedBlob(digest, self.root)

    def _set_aside(self, digest: str, identity: os.stat_result) -> None:
        place = self.place(digest)
        # Where it cannot be moved, for instance in a store that this user may only read, it is still not used.
        with suppress(OSError):
            # Another process may have put a sound blob in its place since this one was opened.
            if os.path.samestat(identity, place.stat()):
                self._checksums.forget(digest)
                self._damaged.mkdir(parents=True, exist_ok=True)
                discard(self._damaged / digest)
                rename(place, self._damaged / digest)


def _new(path: Path) -> io.BufferedRandom:
    """Open a new file for writing and reading, and make the folders that it needs. Raises OSError."""
    try:
        return path.open("x+b")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x+b")


def _naming(file: io.FileIO | io.BufferedRandom) -> Reading:
    """What is to be found of a file that is named: beside its digest, the checksum of a large one."""
    return Reading(checksum=os.fstat(file.fileno()).st_size >= LARGE_BYTES)


class _Longer(Exception):
    """More has come than the blob has."""


class _Watched(io.RawIOBase):
    """A file whose own failures are reported as the store's, and no others that happen while it is read.

    `read_so_far` takes the size of every piece that is read.
    """

    def __init__(self, file: io.FileIO, task: str, read_so_far: Callable[[int], None] = lambda count: None) -> None:
        self._file = file
        self._task = task
        self._read_so_far = read_so_far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        with explained(self._task):
            count = self._file.readinto(buffer)
        self._read_so_far(count or 0)
        return count

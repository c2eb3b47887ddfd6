"""Blob store: files named by their SHA-256.

A blob is never half-written, and is verified whenever it is read.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from epbuild.cache.checksums import Check, Checksums
from epbuild.cache.digests import stat_writes
from epbuild.cache.drafts import Draft, Drafts, touch
from epbuild.cache.entries import CacheEntry, list_files_below
from epbuild.cache.errors import DamagedBlob, MissingBlob, translate_os_errors
from epbuild.core.atomic import rename, write_new
from epbuild.core.clone import copy_open_file
from epbuild.core.digest import LARGE_BYTES, Blob, Count, Hasher, Readable, Write, hash_bytes, hash_into, ignore_count
from epbuild.core.file_use import discard
from epbuild.core.safepath import open_raw

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
"""Maximum size of a blob that is read and verified in memory before a file is created."""


class BlobSource(Protocol):
    """Source of the blobs that outputs contain. `BlobStore` documents the methods."""

    def materialize(self, digest: str, destination: str | Path, count: Count = ignore_count) -> None: ...

    def copy(self, digest: str, write: Write, count: Count = ignore_count) -> None: ...


class BlobStore:
    """Store of the blobs below `root`. Any number of threads and processes may use the same root concurrently."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects = root / "cas" / "sha256"
        self._damaged = root / "cas" / "damaged"
        self._drafts = Drafts(root / "cas" / "tmp")
        self._checksums = Checksums(root / "cas" / "xxh3-128", self._drafts)
        self._written: dict[str, tuple[int, ...]] = {}
        """Stat of each file that this process wrote, by digest."""

    @property
    def partials(self) -> Path:
        """Folder for partial files that a later run completes, on the blobs' file system. Callers create the folder when they need it."""
        return self.root / "cas" / "partial"

    def put(self, path: Path, *, move: bool = False, count: Count = ignore_count) -> Blob:
        """Store the content of the file at `path`, and return its blob. Raises StoreError.

        Read the file once. A blob of this store is not read again.

        If `move` is set, a file on the store's file system is moved instead of copied. No other process may then write to the file. After
        the call, the file may be missing at `path`, even if the call failed. `count` receives the size of each stored piece.
        """
        known = self.find(path.name)
        if known is not None and path == self.place(path.name) and self._touch(path.name):
            count(known.size)
            return known
        if move:
            with translate_os_errors("store {} in {}", path, self.root), self._drafts.moved(path) as draft:
                if draft is not None:
                    hasher = _make_hasher(draft.file, count)
                    hash_into(draft.file, hasher)
                    return self._publish_hashed(draft, hasher)
        with translate_os_errors("read {}", path, elsewhere=None):
            source = path.open("rb", buffering=0)
        with source, translate_os_errors("store {} in {}", path, self.root), self._drafts.new() as draft:
            hasher = _make_hasher(source, count)
            copy_open_file(source, draft.file, hasher)
            return self._publish_hashed(draft, hasher)

    def put_partial(self, path: Path, blob: Blob) -> None:
        """Move the closed file at `path` in `partials` into the store.

        The caller must have verified that the file contains `blob`.

        If this method raises StoreError, the file stays at `path`.
        """
        with translate_os_errors("store {} in {}", path, self.root), path.open("r+b") as file:
            touch(path)  # the file may be old, so that the blob would look unused
            self._publish(Draft(path, file), blob)
        with suppress(OSError):  # the file still exists if the store already had the blob
            discard(path)

    def put_stream(self, blob: Blob, source: Readable, count: Count = ignore_count) -> bool:
        """Store the content of `source` if it matches `blob`, and return whether it matches.

        Raises StoreError, and errors from reading `source`.
        """
        size = 0

        def write(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)
            if size > blob.size:
                raise _TooLong
            draft.file.write(piece)

        with translate_os_errors("store {} in {}", blob.digest, self.root), self._drafts.new() as draft:
            hasher = Hasher(checksum=blob.size >= LARGE_BYTES, count=count)
            try:
                hash_into(source, hasher, write)
            except _TooLong:
                return False
            if hasher.blob != blob:
                return False
            self._publish_hashed(draft, hasher)
            return True

    def find(self, digest: str) -> Blob | None:
        """Return the blob with this digest, or None if the blob is missing. Reads no content."""
        try:
            return Blob(digest, self.place(digest).stat().st_size)
        except (OSError, MissingBlob):
            return None

    def has(self, digest: str, size: int) -> bool:
        """Return whether the store has a blob with this digest and this size in bytes. Reads no content."""
        try:
            return os.stat(self._build_path(digest)).st_size == size  # noqa: PTH116 - called for tens of thousands of blobs
        except (OSError, MissingBlob):
            return False

    def has_written(self, digest: str) -> bool:
        """Return whether this process wrote the file of a blob, and no process has changed the file since. Reads no content."""
        known = self._written.get(digest)
        return bool(known) and known == stat_writes(self.place(digest))

    def materialize(self, digest: str, destination: str | Path, count: Count = ignore_count) -> None:
        """Create `destination`, which must not exist, as an ordinary writable file with the content of a blob.

        The file is a copy, not a link, so changing it cannot change the blob. Missing parent folders are created. `count` receives the size
        of each written piece. Raises MissingBlob, DamagedBlob, and StoreError if the file cannot be written. After an error, no file is
        left.
        """
        with self._open(digest) as source:
            identity = os.fstat(source.fileno())
            if identity.st_size <= _SMALL_BYTES:
                data = self._read_all(source, digest, identity)
                with translate_os_errors("write {}", destination, elsewhere=None):
                    write_new(destination, data)
                count(len(data))
                return
            destination = Path(destination)
            check = Check(self._checksums, digest, identity.st_size, count)
            with translate_os_errors("write {}", destination, elsewhere=None):
                copy = _create(destination)
                try:
                    with copy:
                        copy_open_file(source, copy, check.hasher)
                except BaseException:
                    destination.unlink(missing_ok=True)
                    raise
        if not check.passes():
            destination.unlink(missing_ok=True)
            raise self._make_damage_error(digest, identity)

    def copy(self, digest: str, write: Write, count: Count = ignore_count) -> None:
        """Pass the pieces of a blob to `write`, one at a time, and their sizes to `count`. Raises errors of `pieces` and `write`."""
        for piece in self.pieces(digest):
            write(piece)
            count(len(piece))

    def pieces(self, digest: str) -> Iterator[memoryview]:
        """Yield the content of a blob in pieces of at most 1 MiB, using constant memory.

        A piece is valid until the next one is yielded. The last piece is yielded only after the whole content has been verified, so callers
        never receive all pieces of a damaged blob. Raises MissingBlob, DamagedBlob, StoreError.
        """
        with self._open(digest) as source:
            identity = os.fstat(source.fileno())
            check = Check(self._checksums, digest, identity.st_size)
            last = None
            for piece in self._read_pieces(source, digest):
                check.hasher.update(piece)
                if last is not None:
                    yield last
                last = piece
        if not check.passes():
            raise self._make_damage_error(digest, identity)
        if last is not None:
            yield last

    def read_bytes(self, digest: str) -> bytes:
        """Return the content of a blob, which must fit in memory. Raises MissingBlob, DamagedBlob, StoreError."""
        with self._open(digest) as source:
            return self._read_all(source, digest, os.fstat(source.fileno()))

    def check(self, digest: str, read_so_far: Callable[[int], None] = lambda count: None) -> None:
        """Read a whole blob in constant memory. If its SHA-256 differs from its name, move it to the folder of damaged blobs.

        `read_so_far` is called with the size of each piece. An exception that it raises ends the check.
        Raises MissingBlob, DamagedBlob, StoreError.
        """
        with self._open(digest) as source:
            hasher = _make_hasher(source)
            for piece in self._read_pieces(source, digest):
                hasher.update(piece)
                read_so_far(len(piece))
            identity = os.fstat(source.fileno())
        if hasher.digest != digest:
            raise self._make_damage_error(digest, identity)
        self._checksums.put(digest, hasher.checksum)

    def entries(self) -> Iterator[CacheEntry]:
        """Yield every blob, with the time when it was last stored. Raises StoreError."""
        with translate_os_errors("list the store {}", self.root):
            for path, status in list_files_below(self._objects):
                if _DIGEST.fullmatch(path.name):
                    yield CacheEntry("blob", path.name, status.st_size, status.st_mtime_ns)

    def remove(self, entry: CacheEntry) -> bool:
        """Remove a blob that `entries` listed, unless it was stored again since. Return whether it was removed. Raises StoreError."""
        with translate_os_errors("remove {} from the store {}", entry.name, self.root):
            self._checksums.forget(entry.name)
            return self._drafts.withdraw(self.place(entry.name), entry.used_ns)

    def sweep(self) -> None:
        """Remove the unfinished files of killed processes. Raises StoreError."""
        with translate_os_errors("clean up the store {}", self.root):
            self._drafts.sweep()

    def place(self, digest: str) -> Path:
        """Return the path of a blob, which need not exist. Callers may read the file or link to it, but never write it.

        Raises MissingBlob for an invalid digest.
        """
        return Path(self._build_path(digest))

    def _build_path(self, digest: str) -> str:
        # Digests come from documents on disk: an invalid one must not name a path outside the store.
        if not _DIGEST.fullmatch(digest):
            raise MissingBlob(digest, self.root)
        return f"{self._objects}{os.sep}{digest[:2]}{os.sep}{digest}"

    def _publish_hashed(self, draft: Draft, hasher: Hasher) -> Blob:
        blob = hasher.blob
        self._publish(draft, blob)
        self._checksums.put(blob.digest, hasher.checksum)
        return blob

    def _publish(self, draft: Draft, blob: Blob) -> None:
        place = self.place(blob.digest)
        if self.has(blob.digest, blob.size):
            if self._touch(blob.digest):
                return
        else:
            with suppress(FileNotFoundError):
                self._set_aside(blob.digest, place.stat())
        try:
            draft.publish(place, read_only=True)
            self._written[blob.digest] = stat_writes(place)
        except PermissionError:
            # Windows does not replace read-only files. If another writer was faster, its blob has the same content.
            if not self.has(blob.digest, blob.size):
                raise

    def _touch(self, digest: str) -> bool:
        """Record a use of a blob. Return False on failure, such as a missing file."""
        place, is_own = self.place(digest), self.has_written(digest)
        touched = touch(place)
        if is_own:
            self._written[digest] = stat_writes(place)
        return touched

    def _open(self, digest: str) -> io.FileIO:
        place = self.place(digest)
        with translate_os_errors("read {}", place):
            try:
                return open_raw(place)
            except FileNotFoundError:
                raise MissingBlob(digest, self.root) from None

    def _read_pieces(self, source: io.FileIO, digest: str) -> Iterator[memoryview]:
        """Yield the content of an open blob. Each piece stays valid while the next one is in use. Raises StoreError."""
        size = min(_PIECE_BYTES, os.fstat(source.fileno()).st_size + 1)
        buffer, other = memoryview(bytearray(size)), memoryview(bytearray(size))
        while True:
            with translate_os_errors("read {} in the store {}", digest, self.root):
                count = source.readinto(buffer)
            if not count:
                return
            yield buffer[:count]
            buffer, other = other, buffer

    def _read_all(self, source: io.FileIO, digest: str, identity: os.stat_result) -> bytes:
        """Return the content of an open blob. Raises DamagedBlob, StoreError."""
        with translate_os_errors("read {} in the store {}", digest, self.root):
            data = source.read()
        if hash_bytes(data) != digest:
            source.close()  # Windows does not rename open files
            raise self._make_damage_error(digest, identity)
        return data

    def _make_damage_error(self, digest: str, identity: os.stat_result) -> DamagedBlob:
        """Set a damaged blob aside, and return the error to raise."""
        self._set_aside(digest, identity)
        return DamagedBlob(digest, self.root)

    def _set_aside(self, digest: str, identity: os.stat_result) -> None:
        place = self.place(digest)
        # A damaged blob that cannot be moved, for instance in a read-only store, is still not used.
        with suppress(OSError):
            # Another process may have replaced the damaged blob with a sound one since it was opened.
            if os.path.samestat(identity, place.stat()):
                self._checksums.forget(digest)
                self._damaged.mkdir(parents=True, exist_ok=True)
                discard(self._damaged / digest)
                rename(place, self._damaged / digest)


def _create(path: Path) -> io.BufferedRandom:
    """Open a new file for writing and reading, and create the folders above it. Raises OSError."""
    try:
        return path.open("x+b")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x+b")


def _make_hasher(file: io.FileIO | io.BufferedRandom, count: Count = ignore_count) -> Hasher:
    """Return a hasher that computes a file's digest, and also its checksum if the file is large."""
    return Hasher(checksum=os.fstat(file.fileno()).st_size >= LARGE_BYTES, count=count)


class _TooLong(Exception):
    """Error for a stream that has more bytes than the expected blob."""

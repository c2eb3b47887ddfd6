"""`RemoteCache`: looks up records, fetches blobs, and publishes results.

A build never fails because of its remote cache: failures are returned or reported as warnings. A build never uses data that it cannot
verify.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct, structs

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.core.digest import Blob, Count, Hasher, RestartableCount, Write, hash_stream, ignore_count
from epbuild.core.errors import Cancelled, Problem
from epbuild.remote.envelope import MAX_BYTES, RecordKind, RemoteRecord, Unusable, seal, unseal
from epbuild.remote.keys import SigningKey
from epbuild.remote.statistics import RemoteStatistics, RemoteTally
from epbuild.transfer.objects import (
    Content,
    Download,
    MissingObjectError,
    ObjectStore,
    Speed,
    TimedDownload,
    Timeouts,
    TransferError,
)
from epbuild.transfer.retry import CircuitBreaker, CircuitOpenError, RetryPolicy, wait_for_retry

_T = TypeVar("_T")

Warn = Callable[[Problem], None]
"""Callback that reports a warning to the user."""

THREADS = 64
"""Number of concurrent look-ups. It exceeds the number of CPUs, as look-ups mostly wait for the server."""

RETRY = RetryPolicy(pauses=(0.2, 1.0), max_pause=2.0, retries_timeouts=False)
"""Retry policy with few retries, as a build can continue without its remote cache.

Timeouts are not retried, as a server that hangs would hang again.
"""

BLOB_TIMEOUTS = Timeouts(connect=3.0, answer=5.0, idle=20.0, uploaded=9.0)
RECORD_TIMEOUTS = Timeouts(connect=3.0, answer=5.0, idle=5.0, uploaded=5.0)
"""Timeouts for records. Records are small, so a server that sends one slowly is assumed to hang."""

_CONSEQUENCES = {
    "read": "Results that are not in the store have to be created again.",
    "written": "The results of this build are not shared.",
}
_PIECE_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_GONE = "one of its files is missing from the remote cache"
_DAMAGED = "one of its files is damaged in the remote cache"


class Miss(Struct, frozen=True):
    """Missing record. If `answered` is false, the server did not answer, and it is unknown whether the record exists."""

    answered: bool = True


Published = Literal["written", "there"]
"""Outcome of publishing: `written` if this build wrote the result, `there` if the result already existed."""

LookUp = RemoteRecord | Unusable | Miss


class NotFetched(Exception):
    """Error for a blob that cannot be fetched. The result with the blob must then be built. The text is the reason, as a clause."""


class LostBlob(NotFetched):
    """Error for a blob that is missing from the remote cache or is damaged there."""


class RemoteStores(NamedTuple):
    """Two clients for the same objects, `ac/KEY` and `cas/DIGEST`: one for short requests, one for blobs. Only their timeouts differ."""

    records: ObjectStore
    blobs: ObjectStore


class RemoteCache:
    """Remote cache of one build. Thread-safe.

    A record is used only if it is signed by one of the public keys in `trust` (None: any key). `signer` signs published results (None:
    nothing is published). If the remote cache cannot be used, `warn` is called at most once for reading and once for writing, from any
    thread. `pause` waits for a number of seconds before a retry. By default, the wait ends early if the build is cancelled.
    """

    record_speed = Speed(8.0, 1e6)

    def __init__(
        self,
        stores: RemoteStores,
        name: str,
        *,
        trust: Set[str] | None,
        signer: SigningKey | None = None,
        warn: Warn,
        cancelled: threading.Event | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self._stores = stores
        self._trust = trust
        self._signer = signer
        self._warn = warn
        self._cancelled = cancelled or threading.Event()
        wait = pause or partial(wait_for_retry, self._cancelled)
        self._reading = CircuitBreaker(RETRY, wait, partial(self._report_failure, "read"))
        self._writing = CircuitBreaker(RETRY, wait, partial(self._report_failure, "written"))
        self._reading.peer, self._writing.peer = self._writing, self._reading
        self._tally = RemoteTally()
        self._bad: set[str] = set()
        """Digests of blobs that this build found damaged or missing. They are uploaded again, even if they seem to exist."""
        self._locks: dict[str, threading.Lock] = {}

    @property
    def statistics(self) -> RemoteStatistics:
        """Statistics of the requests and answers so far."""
        return self._tally.read()

    @property
    def is_readable(self) -> bool:
        """False once failures have stopped look-ups. A warning has then reported these failures."""
        return not self._reading.is_open

    @property
    def is_given_up(self) -> bool:
        """True if reading or writing has been stopped after failures."""
        return self._reading.is_open or self._writing.is_open

    @property
    def writes(self) -> bool:
        """True if results are published."""
        return self._signer is not None

    def close(self) -> None:
        """Close idle connections."""
        for store in self._stores:
            store.close()

    def look_up(self, kind: RecordKind, key: str) -> LookUp:
        """Return the record of a key, or the reason why there is no usable record. Raises Cancelled."""
        found = self._find_record(kind, key)
        if kind.is_result and found != Miss(answered=False):
            self._tally.add(asked=1, found=int(isinstance(found, RemoteRecord)), unusable=int(isinstance(found, Unusable)))
        return found

    def look_again(self, kind: RecordKind, key: str) -> LookUp:
        """Look up a key whose record was missing in an earlier look-up. Raises Cancelled."""
        found = self._find_record(kind, key)
        if isinstance(found, RemoteRecord):
            self._tally.add(found=1)
        return found

    def look_up_all(self, kind: RecordKind, keys: Iterable[str]) -> Mapping[str, LookUp]:
        """Look up several keys concurrently, and return the result for each key. Raises Cancelled."""
        wanted = list(dict.fromkeys(keys))
        if len(wanted) < 2:
            return {key: self.look_up(kind, key) for key in wanted}
        with ThreadPoolExecutor(min(THREADS, len(wanted)), thread_name_prefix="look-up") as pool:
            return dict(zip(wanted, pool.map(lambda key: self.look_up(kind, key), wanted), strict=True))

    def fetch(self, blob: Blob, store: BlobStore, count: Count = ignore_count) -> None:
        """Fetch a blob into the store, which verifies it. `count` receives the size of each piece that arrives.

        Raises NotFetched, StoreError and Cancelled.
        """
        if not _DIGEST.fullmatch(blob.digest):
            raise NotFetched("the digest of one of its files is invalid")
        with self._locks.setdefault(blob.digest, threading.Lock()):  # a blob of two results is fetched only once
            if store.has(blob.digest, blob.size):
                count(blob.size)
                return
            self._read(lambda: self._receive(blob, store, count))

    def copy(self, blob: Blob, write: Write) -> None:
        """Pass a blob to `write` as it arrives, without storing it. The last piece is passed only after the digest has been verified.

        So the receiver never has a complete blob with wrong content. Raises NotFetched, Cancelled, and errors of `write`.
        """
        download = self._read(lambda: self._open_blob(blob))
        with self._tally.time_request(), closing(download):
            source, hasher = TimedDownload(download, BLOB_TIMEOUTS.speed, self._count_received), Hasher()
            buffer, spare = (memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))
            held = buffer[:0]
            while count := _read_piece(source, buffer):
                hasher.update(buffer[:count])
                if hasher.size > blob.size:
                    break
                if held:
                    write(held)
                held, buffer, spare = buffer[:count], spare, buffer
            if hasher.blob != blob:
                raise self._make_lost_error(blob, _DAMAGED)
            if held:
                write(held)
        self._tally.add(blobs=1)

    def check(self, blob: Blob) -> None:
        """Read and verify a blob without storing it. Raises NotFetched if it cannot be read or is damaged, and Cancelled."""
        if self._read(lambda: self._hash_blob(blob)) != blob:
            raise self._make_lost_error(blob, _DAMAGED)

    def publish(
        self,
        kind: RecordKind,
        key: str,
        record: Mapping[str, Any],
        store: BlobStore,
        *,
        replace: bool = False,
        more: bool = False,
        count: Count = ignore_count,
    ) -> Published | None:
        """Publish a result whose blobs are in the store: missing blobs first, the record last.

        `count` receives the size of each piece that is sent, and of each blob that the remote cache already has.

        An existing usable record is kept unless some of its blobs are lost. If `more` is set, an existing record that differs from the new
        record is also replaced. If `replace` is set, an existing record is always replaced, and all blobs are uploaded again. A log that is
        missing from the store is not published.

        Returns `written` if the result was written, or `there` if it already existed. Returns None if the result was not published, or if
        the outcome is unknown. Raises StoreError if the store cannot be read, and Cancelled.
        """
        if self._signer is None:
            return None
        existing = self._find_record(kind, key)
        if existing == Miss(answered=False):  # a record that cannot be read is not overwritten
            return None
        known = existing if isinstance(existing, RemoteRecord) else None
        lost = self._bad.intersection(blob.digest for blob in known.blobs) if known is not None else set[str]()
        if known is not None and not lost and not replace and (not more or _are_equal(known.record, record)):
            return "there"
        log = kind.log(record)
        if log is not None and not store.has(log.digest, log.size):  # the result was built on another machine
            kind = structs.replace(kind, log=lambda record: None)
        blobs = list_blobs(kind, record)
        # The existing record stays valid if this upload restores the blobs that it has lost.
        keeps_record = known is not None and lost <= {blob.digest for blob in blobs} and not replace and not more
        try:
            data = seal(kind, key, record, self._signer)
            for blob in blobs:
                pieces = partial(store.pieces, blob.digest)
                self._writing.call(partial(self._put_pieces, blob, pieces, RestartableCount(count), anyway=replace))
            if not keeps_record:
                self._writing.call(lambda: self._put_record(key, data))
                self._tally.add(sent_bytes=len(data))
        except (TransferError, CircuitOpenError, MissingBlob, DamagedBlob, ValueError):  # ValueError: too large for a reader
            return None
        if kind.is_result:
            self._tally.add(published=1)
        return "written"

    def upload_input(self, blob: Blob, pieces: Callable[[], Iterator[bytes | memoryview]], count: Count = ignore_count) -> bool:
        """Upload a blob that is not part of a result, for use by another machine. Return whether the remote cache now has the blob.

        Each call of `pieces` yields the blob's bytes from the start. `count` is called as by `publish`. Raises errors of `pieces`, and
        Cancelled.
        """
        try:
            self._writing.call(partial(self._put_pieces, blob, pieces, RestartableCount(count)))
        except (TransferError, CircuitOpenError):
            return False
        return True

    def _find_record(self, kind: RecordKind, key: str) -> LookUp:
        if not _DIGEST.fullmatch(key):
            raise ValueError(f"not a key: {key!r}")
        try:
            data = self._reading.call(lambda: self._read_record(key))
        except (TransferError, CircuitOpenError):
            return Miss(answered=False)
        found = None if data is None else unseal(data, kind, key, self._trust)
        return found or Miss()

    def _put_pieces(
        self, blob: Blob, pieces: Callable[[], Iterator[bytes | memoryview]], count: RestartableCount, *, anyway: bool = False
    ) -> None:
        path = f"cas/{blob.digest}"
        count.restart()
        if not anyway and blob.digest not in self._bad and self._stores.records.has(path, blob.size):
            count(blob.size)
            return
        with self._tally.time_request():
            self._stores.blobs.put(path, Content(blob.size, lambda: self._count_pieces(pieces(), count)))
        self._bad.discard(blob.digest)

    def _put_record(self, key: str, data: bytes) -> None:
        with self._tally.time_request():
            self._stores.records.put(f"ac/{key}", Content.of(data))

    def _read_record(self, key: str) -> bytes | None:
        """Return the bytes of a record, or None if it is missing. A record that is too large is cut off just above the limit."""
        with self._tally.time_request():
            try:
                download = self._stores.records.get(f"ac/{key}")
            except MissingObjectError:
                return None
            with closing(download):
                data, source = bytearray(), TimedDownload(download, self.record_speed, self._count_received)
                buffer = memoryview(bytearray(64 * 1024))
                while len(data) <= MAX_BYTES and (count := source.readinto(buffer)):
                    data += buffer[:count]
                return bytes(data)

    def _read(self, work: Callable[[], _T]) -> _T:
        """Call `work`, which reads a blob, and return its result. Raises NotFetched and Cancelled."""
        try:
            return self._reading.call(work)
        except CircuitOpenError as error:
            raise NotFetched("the remote cache can no longer be read") from error
        except TransferError as error:
            raise NotFetched(error.reason) from error

    def _make_lost_error(self, blob: Blob, reason: str) -> LostBlob:
        """Note that a blob must be uploaded again, and return the error to raise."""
        self._bad.add(blob.digest)
        return LostBlob(reason)

    def _open_blob(self, blob: Blob) -> Download:
        try:
            return self._stores.blobs.get(f"cas/{blob.digest}")
        except MissingObjectError as error:
            raise self._make_lost_error(blob, _GONE) from error

    def _receive(self, blob: Blob, store: BlobStore, count: Count) -> None:
        with self._tally.time_request(), closing(self._open_blob(blob)) as download:
            source = TimedDownload(download, BLOB_TIMEOUTS.speed, self._count_received)
            if download.size not in (None, blob.size) or not store.put_stream(blob, source, count):
                raise self._make_lost_error(blob, _DAMAGED)
        self._tally.add(blobs=1)

    def _hash_blob(self, blob: Blob) -> Blob:
        with self._tally.time_request(), closing(self._open_blob(blob)) as download:
            return hash_stream(TimedDownload(download, BLOB_TIMEOUTS.speed, self._count_received))

    def _count_received(self, count: int) -> None:
        self._tally.add(received_bytes=count)
        if self._cancelled.is_set():
            raise Cancelled("the remote cache")

    def _count_pieces(self, pieces: Iterator[bytes | memoryview], count: RestartableCount) -> Iterator[bytes | memoryview]:
        count.restart()  # a redirected request is sent again
        for piece in pieces:
            self._tally.add(sent_bytes=len(piece))
            if self._cancelled.is_set():
                raise Cancelled("the remote cache")
            yield piece
            count(len(piece))

    def _report_failure(self, side: Literal["read", "written"], error: TransferError) -> None:
        message = f"the remote cache {self.name} cannot be {side}: {error.reason}"
        self._warn(Problem("EPB521", message, hint=f"{_CONSEQUENCES[side]} {error.hint}"))


def _read_piece(source: TimedDownload, buffer: memoryview) -> int:
    try:
        return source.readinto(buffer)
    except TransferError as error:
        raise NotFetched(error.reason) from error


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two records are equal as JSON. New results contain tuples where records that were read contain lists."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def list_blobs(kind: RecordKind, record: Mapping[str, Any]) -> list[Blob]:
    """Return the distinct blobs of a record. Its log is the last one."""
    log = kind.log(record)
    return list(dict.fromkeys([*kind.files(record).values(), *([log] if log is not None else [])]))

"""`RemoteCache`: records looked up, blobs fetched and results published.

What goes wrong on the way is a value, or a warning: a build never fails for its remote cache, and never uses what it cannot check.
"""

from __future__ import annotations

import dataclasses
import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Literal

from epbuild.cache.blobs import BlobStore
from epbuild.cache.errors import DamagedBlob, MissingBlob
from epbuild.cache.leases import Cancelled
from epbuild.core.digest import Blob, Reading, Write, hash_stream
from epbuild.core.pace import Pace, PaceMeter
from epbuild.core.values import dataclass
from epbuild.remote.attempts import Attempts, Breaker, SwitchedOff, Warn
from epbuild.remote.envelope import MOST_BYTES, RecordKind, RemoteRecord, Unusable, seal, unseal
from epbuild.remote.keys import SigningKey
from epbuild.remote.statistics import RemoteStatistics, RemoteTally
from epbuild.remote.transport import Content, Download, RemoteError, Space, Transport

THREADS = 64
"""How many look-ups are under way at once: a request takes time that no processor is used in."""

_PIECE_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_GONE = "a file of it is gone from the remote cache"
_DAMAGED = "a file of it is damaged in the remote cache"


_BLOB_PACE = Pace(60.0, 10e3)


@dataclass(frozen=True)
class Miss:
    """There is no record; or, where nothing was `answered`, it is not known whether there is one."""

    answered: bool = True


Published = Literal["written", "there"]
"""How a result came to be in the remote cache: it was written, or had been before."""

LookUp = RemoteRecord | Unusable | Miss


class NotFetched(Exception):
    """A blob of a record cannot be had; the text is why, as a clause. What it was for has to be made."""


class LostBlob(NotFetched):
    """The remote cache has no such blob, or another content in its place."""


class RemoteCache:
    """A remote cache behind a `transport`, for one build. Any number of threads may use it.

    `trust` are the keys whose records are used (None: any); `signer` signs what is published (None: nothing is). `warn` is given a
    problem once for each side of the remote that cannot be used, from whichever thread finds it. `pause` waits that many seconds
    before something is asked again; by default, no longer than until the build is cancelled.
    """

    record_pace = Pace(8.0, 1e6)

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        trust: Set[str] | None,
        signer: SigningKey | None = None,
        warn: Warn,
        cancelled: threading.Event | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self._transport = transport
        self._trust = trust
        self._signer = signer
        self._cancelled = cancelled or threading.Event()
        reading, writing = Breaker("reading", name, warn), Breaker("writing", name, warn)
        reading.partner, writing.partner = writing, reading
        self._reading, self._writing = Attempts(reading, pause or self._pause), Attempts(writing, pause or self._pause)
        self._tally = RemoteTally()
        self._bad: set[str] = set()
        """The blobs that this build found damaged or missing there, by digest: such are written again, although they seem to be there."""
        self._locks: dict[str, threading.Lock] = {}

    @property
    def statistics(self) -> RemoteStatistics:
        """What was asked and found so far."""
        return self._tally.read()

    @property
    def is_readable(self) -> bool:
        """Whether it is still asked: not once it was found not to answer, of which a warning was given."""
        return not self._reading.breaker.is_open

    @property
    def is_given_up(self) -> bool:
        """Whether it was found not to answer, and is not asked any more in one way or the other."""
        return self._reading.breaker.is_open or self._writing.breaker.is_open

    @property
    def writes(self) -> bool:
        """Whether results are published."""
        return self._signer is not None

    def close(self) -> None:
        """Let connections go."""
        self._transport.close()

    def look_up(self, kind: RecordKind, key: str) -> LookUp:
        """The record of a key, if there is one that may be used. Raises Cancelled."""
        found = self._found(kind, key)
        if kind.is_result and found != Miss(answered=False):
            self._tally.looked_up(found=isinstance(found, RemoteRecord), usable=not isinstance(found, Unusable))
        return found

    def look_again(self, kind: RecordKind, key: str) -> LookUp:
        """The record of a key that was not there when it was looked up, if it came since. Raises Cancelled."""
        found = self._found(kind, key)
        if isinstance(found, RemoteRecord):
            self._tally.found_later()
        return found

    def look_up_all(self, kind: RecordKind, keys: Iterable[str]) -> Mapping[str, LookUp]:
        """The records of several keys, many at once. Raises Cancelled."""
        wanted = list(dict.fromkeys(keys))
        if len(wanted) < 2:
            return {key: self.look_up(kind, key) for key in wanted}
        with ThreadPoolExecutor(min(THREADS, len(wanted)), thread_name_prefix="look-up") as pool:
            return dict(zip(wanted, pool.map(lambda key: self.look_up(kind, key), wanted), strict=True))

    def fetch(self, blob: Blob, store: BlobStore) -> None:
        """Have a blob in the store, where it appears only once it is known to be right. Raises NotFetched, StoreError and Cancelled."""
        if not _DIGEST.fullmatch(blob.digest):
            raise NotFetched("its name is not a digest")
        with self._locks.setdefault(blob.digest, threading.Lock()):  # what two results have in common comes once
            if store.has(blob.digest, blob.size):
                return
            try:
                self._reading.ask(lambda: self._receive(blob, store))
            except SwitchedOff as error:
                raise NotFetched("the remote cache cannot be read any more") from error
            except RemoteError as error:
                raise NotFetched(error.reason) from error

    def copy(self, blob: Blob, write: Write) -> None:
        """Write a blob to `write` as it comes, and keep nothing; the last piece only once all of it is known to be right.

        So who passes it on has passed on no whole content that is wrong. Raises NotFetched, Cancelled, and what `write` raises.
        """
        try:
            download = self._reading.ask(lambda: self._transport.get("cas", blob.digest))
        except (RemoteError, SwitchedOff) as error:
            raise NotFetched(str(error) or "the remote cache cannot be read any more") from error
        if download is None:
            self._bad.add(blob.digest)
            raise LostBlob(_GONE)
        with self._tally.busy(), closing(download):
            source, reading = _PacedDownload(download, _BLOB_PACE, self._received), Reading()
            buffer, spare = (memoryview(bytearray(_PIECE_BYTES)) for _ in range(2))
            held = buffer[:0]
            while count := _read(source, buffer):
                reading.update(buffer[:count])
                if reading.size > blob.size:
                    break
                if held:
                    write(held)
                held, buffer, spare = buffer[:count], spare, buffer
            if reading.blob != blob:
                self._bad.add(blob.digest)
                raise LostBlob(_DAMAGED)
            if held:
                write(held)
        self._tally.fetched()

    def check(self, blob: Blob) -> None:
        """Read a blob through, and keep nothing of it. Raises NotFetched where it is not there, or another, and Cancelled."""
        try:
            found = self._reading.ask(lambda: self._hash(blob))
        except (RemoteError, SwitchedOff) as error:
            raise NotFetched(str(error) or "the remote cache cannot be read any more") from error
        if found != blob:
            self._bad.add(blob.digest)
            raise LostBlob(_GONE if found is None else _DAMAGED)

    def publish(
        self,
        kind: RecordKind,
        key: str,
        record: Mapping[str, Any],
        store: BlobStore,
        *,
        replace: bool = False,
        more: bool = False,
    ) -> Published | None:
        """Publish a result whose blobs are in the store: those that are missing there first, its record last.

        A record that may be used stays as it is, unless blobs of it were found to be lost; `more`: unless this one has more in it;
        `replace`: it does not, and all blobs are written again. A log that the store has not is left out. Returns how the result came to
        be there; None where it is not, or that is not known. Raises StoreError where the store cannot be read, and Cancelled.
        """
        if self._signer is None:
            return None
        there = self._found(kind, key)
        if there == Miss(answered=False):  # what cannot be read is not written over
            return None
        bad = self._bad.intersection(blob.digest for blob in there.blobs) if isinstance(there, RemoteRecord) else set[str]()
        if isinstance(there, RemoteRecord) and not bad and not replace and (not more or there.record == record):
            return "there"
        log = kind.log(record)
        if log is not None and not store.has(log.digest, log.size):  # a result that came from elsewhere
            kind = dataclasses.replace(kind, log=lambda record: None)
        blobs = _blobs(kind, record)
        is_mended = isinstance(there, RemoteRecord) and bad <= {blob.digest for blob in blobs}
        try:
            data = seal(kind, key, record, self._signer)
            for blob in blobs:
                self._writing.ask(partial(self._put_blob, blob, store, anyway=replace))
            if replace or more or not is_mended:
                self._writing.ask(lambda: self._put("ac", key, Content.of(data)))
                self._tally.sent(len(data))
        except (RemoteError, SwitchedOff, MissingBlob, DamagedBlob, ValueError):  # the last: larger than any reader takes
            return None
        if kind.is_result:
            self._tally.published()
        return "written"

    def provide(self, blob: Blob, pieces: Callable[[], Iterator[bytes | memoryview]]) -> bool:
        """Have a blob there that is no result, for another machine to read; `pieces` are its bytes, from the start each time.

        Returns whether it is there then. Raises what reading the pieces raises, and Cancelled.
        """
        try:
            self._writing.ask(partial(self._put_pieces, blob, pieces))
        except (RemoteError, SwitchedOff):
            return False
        return True

    def _found(self, kind: RecordKind, key: str) -> LookUp:
        if not _DIGEST.fullmatch(key):
            raise ValueError(f"not a key: {key!r}")
        try:
            data = self._reading.ask(lambda: self._read_record(key))
        except (RemoteError, SwitchedOff):
            return Miss(answered=False)
        found = None if data is None else unseal(data, kind, key, self._trust)
        return found or Miss()

    def _put_blob(self, blob: Blob, store: BlobStore, *, anyway: bool) -> None:
        self._put_pieces(blob, partial(store.pieces, blob.digest), anyway=anyway)

    def _put_pieces(self, blob: Blob, pieces: Callable[[], Iterator[bytes | memoryview]], *, anyway: bool = False) -> None:
        if not anyway and blob.digest not in self._bad and self._transport.has("cas", blob.digest, blob.size):
            return
        self._put("cas", blob.digest, Content(blob.size, lambda: self._unless_cancelled(pieces())))
        self._bad.discard(blob.digest)

    def _put(self, space: Space, name: str, content: Content) -> None:
        with self._tally.busy():
            self._transport.put(space, name, content)

    def _read_record(self, key: str) -> bytes | None:
        """A whole record, or as much of it as shows that it is larger than any; None where there is none."""
        with self._tally.busy():
            download = self._transport.get("ac", key)
            if download is None:
                return None
            with closing(download):
                data, source = bytearray(), _PacedDownload(download, self.record_pace, self._received)
                buffer = memoryview(bytearray(64 * 1024))
                while len(data) <= MOST_BYTES and (count := source.readinto(buffer)):
                    data += buffer[:count]
                return bytes(data)

    def _receive(self, blob: Blob, store: BlobStore) -> None:
        with self._tally.busy():
            download = self._transport.get("cas", blob.digest)
            if download is None:
                self._bad.add(blob.digest)
                raise LostBlob(_GONE)
            with closing(download):
                source = _PacedDownload(download, _BLOB_PACE, self._received)
                if download.size not in (None, blob.size) or not store.receive(blob, source):
                    self._bad.add(blob.digest)
                    raise LostBlob(_DAMAGED)
        self._tally.fetched()

    def _hash(self, blob: Blob) -> Blob | None:
        with self._tally.busy():
            download = self._transport.get("cas", blob.digest)
            if download is None:
                return None
            with closing(download):
                return hash_stream(_PacedDownload(download, _BLOB_PACE, self._received))

    def _received(self, count: int) -> None:
        self._tally.received(count)
        if self._cancelled.is_set():
            raise Cancelled("the remote cache")

    def _unless_cancelled(self, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in pieces:
            self._tally.sent(len(piece))
            if self._cancelled.is_set():
                raise Cancelled("the remote cache")
            yield piece

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled("the remote cache")


class _PacedDownload(io.RawIOBase):
    """A download whose bytes are counted. Reading raises RemoteError if the server is slower than `pace`."""

    def __init__(self, download: Download, pace: Pace, received: Callable[[int], None]) -> None:
        self._download = download
        self._meter = PaceMeter(pace)
        self._received = received

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        with self._meter.waiting():
            count = self._download.readinto(buffer)
        self._received(count)
        if count and not self._meter.keeps(count):
            raise RemoteError("it sends too slowly", "Check the network.", "hung")
        return count


def _read(source: _PacedDownload, buffer: memoryview) -> int:
    try:
        return source.readinto(buffer)
    except RemoteError as error:
        raise NotFetched(error.reason) from error


def _blobs(kind: RecordKind, record: Mapping[str, Any]) -> list[Blob]:
    """What a record is about, each content once, its log last."""
    log = kind.log(record)
    return list(dict.fromkeys([*kind.files(record).values(), *([log] if log is not None else [])]))

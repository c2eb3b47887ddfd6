"""The download of one remote file into the store, at most once, in pieces."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import Cancelled, lease
from epbuild.cache.records import ActionRecords, address_records
from epbuild.core.connection import Timeouts
from epbuild.core.digest import Blob, digest_of
from epbuild.core.errors import HttpCancelled, Problem
from epbuild.core.http import HttpClient, Unreachable
from epbuild.core.pace import PaceMeter
from epbuild.core.values import dataclass
from epbuild.fetch.failures import FetchError
from epbuild.fetch.hub import HubSource
from epbuild.fetch.objects import ObjectSource
from epbuild.fetch.partial import Partial
from epbuild.fetch.transfer import MissingPackage, Source
from epbuild.fetch.web import WebSource
from epbuild.recipe.address import Address, HubAddress, ObjectAddress, PackageAddress, WebAddress, is_immutable

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PROGRESS_SECONDS = 0.1


class FetchProgress(Protocol):
    """Follows files on their way."""

    def arrived(self, address: str, done: int, total: int | None) -> None:
        """How many bytes of the file at an address are here, and how many it has in all, if that is known."""


def fetch(
    address: Address,
    sha256: str | None,
    store: BlobStore,
    *,
    progress: FetchProgress,
    cancelled: threading.Event,
    client: HttpClient | None = None,
) -> Blob:
    """The content of `address`, in the store: without the network where it is there, else downloaded and checked.

    `sha256` may be left out for a commit of the hub only, which names a content itself. Raises FetchError for what cannot be had or
    is another file, StoreError where the disk fails, and Cancelled.
    """
    if sha256 is None and not is_immutable(address):
        raise ValueError(f"{address} is not pinned; add its sha256")
    pin = None if sha256 is None else sha256.lower()
    if pin is not None and not _DIGEST.fullmatch(pin):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    client = client or HttpClient(cancelled=cancelled)
    source = _source(address, client)
    return download(address, source, pin, store, progress=progress, cancelled=cancelled, timeouts=client.timeouts)


def download(
    address: Address,
    source: Source,
    pin: str | None,
    store: BlobStore,
    *,
    progress: FetchProgress,
    cancelled: threading.Event,
    timeouts: Timeouts,
) -> Blob:
    """Do what `fetch` does, from any source. An attempt that brings bytes starts the pauses of `timeouts` from the first again."""
    name = digest_of(address.text)
    # What an address without a pin led to is remembered: the address is such that it leads there for ever.
    memory = address_records(store.root)
    if known := _known(pin, name, store, memory):
        return known
    with lease(store.root, f"fetch-{name}", cancelled=cancelled):
        if known := _known(pin, name, store, memory):
            return known
        with Partial(store.partials / name) as partial:
            expected = pin
            if partial.blob.digest != pin:
                given = _Attempts(address, source, partial, pin, progress, cancelled, timeouts).run()
                expected = pin or given
            blob = partial.blob
            if expected not in (None, blob.digest):
                partial.discard()
                raise _wrong_content(address, str(expected), blob.digest)
            partial.close()
            store.adopt(partial.path, blob)
            partial.forget()
        if pin is None:
            memory.put(name, {"address": str(address), "sha256": blob.digest})
        return blob


def _known(pin: str | None, name: str, store: BlobStore, memory: ActionRecords) -> Blob | None:
    digest = pin if pin is not None else (memory.get(name) or {}).get("sha256")
    return store.find(digest) if digest is not None else None


@dataclass(frozen=True)
class _Attempts:
    """Attempts to download one file. Each resumes where the last one ended, until the file is complete or attempts run out."""

    _address: Address
    _source: Source
    _partial: Partial
    _pin: str | None
    _progress: FetchProgress
    _cancelled: threading.Event
    _timeouts: Timeouts

    def run(self) -> str | None:
        """Fill the partial file to its end. Return the digest that the server gave, if it gave one."""
        pauses = iter(self._timeouts.pauses)
        furthest = self._partial.size
        while True:
            begin = time.monotonic()
            try:
                return self._attempt()
            except Unreachable as failure:
                # An attempt counts as the first again only if it kept the pace: a byte for each attempt would go on for ever.
                least = (time.monotonic() - begin) * self._timeouts.pace.bytes_per_second
                if self._partial.size - furthest > least:
                    furthest, pauses = self._partial.size, iter(self._timeouts.pauses)
                pause = next(pauses, None) if failure.may_pass else None
                if pause is None:
                    going_on = failure.may_pass and self._partial.size
                    kept = f" The {self._partial.size} bytes that have arrived are kept." if going_on else ""
                    message = f"cannot fetch {self._address}: {failure}"
                    raise FetchError(Problem("EPB510", message, hint=failure.hint + kept)) from failure
                if self._cancelled.wait(pause):
                    raise Cancelled(str(self._address)) from failure
            except HttpCancelled as cancellation:
                raise Cancelled(str(self._address)) from cancellation
            except MissingPackage as missing:
                what = f"fetching {self._address} needs the package {missing.package}, which is not installed beside epbuild"
                hint = f"Install it: pip install 'epbuild[{missing.extra}]'."
                raise FetchError(Problem("EPB512", what, hint=hint)) from missing

    def _attempt(self) -> str | None:
        partial = self._partial
        resumable = partial.size if partial.validator is not None else 0
        with closing(self._source.open(resumable, partial.validator)) as reply:
            if self._pin is not None and reply.sha256 not in (None, self._pin):
                raise _wrong_content(self._address, self._pin, str(reply.sha256))
            if reply.start == 0:
                partial.restart(reply.validator)
            self._progress.arrived(str(self._address), partial.size, reply.total)
            shown = time.monotonic()
            for chunk in self._paced(reply.chunks):
                partial.append(chunk)
                if self._cancelled.is_set():
                    raise Cancelled(str(self._address))
                if time.monotonic() - shown >= _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    self._progress.arrived(str(self._address), partial.size, reply.total)
            self._progress.arrived(str(self._address), partial.size, reply.total)
            return reply.sha256

    def _paced(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks. Raises Unreachable if they come too slowly."""
        meter = PaceMeter(self._timeouts.pace)
        while True:
            with meter.waiting():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk
            if not meter.keeps(len(chunk)):
                raise Unreachable("it sends too slowly", may_pass=True)


def _wrong_content(address: Address, expected: str, found: str) -> FetchError:
    message = f"{address} is not the file that the recipe means: its sha256 is {found}, not {expected}"
    hint = "Find out why it has changed; if that is right, put the new sha256 into the recipe. Nothing of it was kept."
    return FetchError(Problem("EPB511", message, hint=hint))


def _source(address: Address, client: HttpClient) -> Source:
    match address:
        case WebAddress():
            return WebSource(address.url, client)
        case ObjectAddress():
            return ObjectSource(address)
        case HubAddress():
            return HubSource(address, client)
        case PackageAddress():
            raise ValueError(f"{address} is not a file by itself: its whole wheel is fetched")

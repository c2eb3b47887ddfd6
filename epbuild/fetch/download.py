"""Download of a remote file into the store, in resumable attempts."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.cache.leases import lease
from epbuild.cache.records import ActionRecords, open_address_records
from epbuild.core.digest import Blob, hash_bytes
from epbuild.core.errors import Cancelled, Problem
from epbuild.fetch.hub import HubFile
from epbuild.fetch.partial import FetchError, Partial
from epbuild.recipe.address import Address, HubAddress, ObjectAddress, PackageAddress, WebAddress, is_immutable
from epbuild.transfer.bucket import BucketStore
from epbuild.transfer.http import HttpClient
from epbuild.transfer.objects import Download, MissingPackageError, TimedDownload, TransferError
from epbuild.transfer.retry import RetryPolicy, wait_for_retry
from epbuild.transfer.web import WebFile

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 256 * 1024
_PROGRESS_SECONDS = 0.1

RETRY = RetryPolicy()

Open = Callable[[int, str | None], Download]
"""Function that opens a remote file at an offset if the file's version is unchanged, or else at its beginning."""


class FetchProgress(Protocol):
    """Receiver of the progress of downloads."""

    def arrived(self, address: str, done: int, total: int | None) -> None:
        """Report how many bytes of the file at `address` have arrived, and the file's size if known."""


def fetch(
    address: Address,
    sha256: str | None,
    store: BlobStore,
    client: HttpClient,
    progress: FetchProgress,
    retry: RetryPolicy = RETRY,
) -> Blob:
    """Return the blob with the content of `address`. Download and verify it if the store does not have it.

    `sha256` may be None only for a file of a commit on the Hugging Face Hub, because such a file never changes. Raises FetchError if the
    file cannot be fetched or has another digest, StoreError if the disk fails, and Cancelled.
    """
    if sha256 is None and not is_immutable(address):
        raise ValueError(f"{address} is not pinned; add its sha256")
    pin = None if sha256 is None else sha256.lower()
    if pin is not None and not _DIGEST.fullmatch(pin):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return download(Attempts(address, _make_opener(address, client), client, progress, retry), pin, store)


class Attempts(Struct, frozen=True):
    """Attempts to download one file. Each attempt resumes the previous attempt, until the file is complete or no attempts are left."""

    address: Address
    open: Open
    client: HttpClient
    progress: FetchProgress
    retry: RetryPolicy = RETRY

    def run(self, partial: Partial, pin: str | None) -> str | None:
        """Complete the partial file. Return the digest that the server sent, or None if it sent no digest."""
        begin, furthest = 0.0, partial.size

        def attempt() -> str | None:
            nonlocal begin
            begin = time.monotonic()
            return self._run_attempt(partial, pin)

        def has_progressed() -> bool:
            # Only an attempt with the minimum speed counts as progress. Otherwise, one byte per attempt would suffice to retry forever.
            nonlocal furthest
            min_bytes = (time.monotonic() - begin) * self.client.timeouts.speed.bytes_per_second
            if partial.size - furthest <= min_bytes:
                return False
            furthest = partial.size
            return True

        try:
            return self.retry.call(attempt, functools.partial(wait_for_retry, self.client.cancelled), has_progressed)
        except TransferError as failure:
            kept = f" The {partial.size} bytes received so far are kept." if failure.may_pass and partial.size else ""
            message = f"cannot fetch {self.address}: {failure}"
            raise FetchError(Problem("EPB510", message, hint=failure.hint + kept)) from failure
        except MissingPackageError as missing:
            raise FetchError(missing.make_problem(f"fetching {self.address}")) from missing

    def _run_attempt(self, partial: Partial, pin: str | None) -> str | None:
        resumable = partial.size if partial.validator is not None else 0
        with closing(self.open(resumable, partial.validator)) as reply:
            if pin is not None and reply.sha256 not in (None, pin):
                raise _make_content_error(self.address, pin, str(reply.sha256))
            if reply.start == 0:
                partial.restart(reply.version)
            self.progress.arrived(str(self.address), partial.size, reply.size)
            shown = time.monotonic()
            source, buffer = TimedDownload(reply, self.client.timeouts.speed), memoryview(bytearray(_CHUNK_BYTES))
            while count := source.readinto(buffer):
                partial.append(buffer[:count])
                if self.client.cancelled.is_set():
                    raise Cancelled(str(self.address))
                if time.monotonic() - shown >= _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    self.progress.arrived(str(self.address), partial.size, reply.size)
            self.progress.arrived(str(self.address), partial.size, reply.size)
            return reply.sha256


def download(attempts: Attempts, pin: str | None, store: BlobStore) -> Blob:
    """Return the blob of a file, downloading it if the store does not have it. Only one process at a time downloads an address."""
    address = attempts.address
    name = hash_bytes(address.text)
    # Digests of unpinned addresses are recorded, as the content of such an address never changes.
    records = open_address_records(store.root)
    if stored := _find_stored(pin, name, store, records):
        return stored
    with lease(store.root, f"fetch-{name}", cancelled=attempts.client.cancelled):
        if stored := _find_stored(pin, name, store, records):
            return stored
        with Partial(store.partials / name) as partial:
            expected = pin
            if partial.blob.digest != pin:
                server_digest = attempts.run(partial, pin)
                expected = pin or server_digest
            blob = partial.blob
            if expected not in (None, blob.digest):
                partial.discard()
                raise _make_content_error(address, str(expected), blob.digest)
            partial.close()
            store.put_partial(partial.path, blob)
            partial.forget()
        if pin is None:
            records.put(name, {"address": str(address), "sha256": blob.digest})
        return blob


def _find_stored(pin: str | None, name: str, store: BlobStore, records: ActionRecords) -> Blob | None:
    digest = pin if pin is not None else (records.get(name) or {}).get("sha256")
    return store.find(digest) if digest is not None else None


def _make_content_error(address: Address, expected: str, actual: str) -> FetchError:
    message = f"{address} does not match the recipe: its sha256 is {actual}, not {expected}"
    hint = "Check why the file has changed. If the change is intended, write the new sha256 into the recipe. The download was discarded."
    return FetchError(Problem("EPB511", message, hint=hint))


def _make_opener(address: Address, client: HttpClient) -> Open:
    match address:
        case WebAddress():
            return WebFile(client, address.url).open
        case ObjectAddress():
            # The bucket is opened in the first attempt, so that a missing package or variable is reported there.
            bucket = functools.cache(lambda: BucketStore(address.scheme, address.bucket, timeouts=client.timeouts))
            return lambda start, version: bucket().get(address.file, start, version)
        case HubAddress():
            return HubFile(address, client).open
        case PackageAddress():
            raise ValueError(f"{address} is inside a wheel and cannot be fetched as a single file")

"""Use of the remote cache by one build: reads, writes and counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from epbuild.cache.blobs import BlobStore
from epbuild.cache.records import ActionRecords
from epbuild.core.byte_progress import ByteProgress, count_bytes
from epbuild.core.digest import Count, ignore_count
from epbuild.core.errors import Cancelled, Problem, StoreError
from epbuild.core.units import format_count
from epbuild.engine.events import Progress, Warned
from epbuild.remote.settings import RemoteSettings
from epbuild.session.events import RemoteCacheUsed, ResultsShared
from epbuild.toolchain.identity import TOOLCHAIN

if TYPE_CHECKING:  # the client of remote caches is loaded only if one is used
    from epbuild.remote.cache import Published, RemoteCache, Warn
    from epbuild.survey.remote_results import RemoteResults

_UPLOADS = 4
"""Number of results that are written in parallel."""
_NOTHING_FOUND = (
    "No machine has shared results of this release of epbuild for these files and toolchains. If the output of an EP depends on "
    "the machine, only a machine like this one can share them. `docs/guides/remote-cache.md` lists what must match."
)


@contextmanager
def open_remote_cache(
    settings: RemoteSettings | None, warn: Warn, cancelled: threading.Event | None = None
) -> Iterator[RemoteCache | None]:
    """Open a remote cache without contacting it, and yield it. Yield None if there are no settings. Raises StoreError."""
    if settings is None:
        yield None
        return
    from epbuild.remote.opening import open_remote

    cache = open_remote(settings, warn, cancelled)
    try:
        yield cache
    finally:
        cache.close()


class SharedResults:
    """Results that a build reads from and writes to the remote cache, if there is one. Any number of threads may use it."""

    def __init__(
        self, store: BlobStore, progress: Progress, cancelled: threading.Event, warn: Callable[[Problem], None] | None = None
    ) -> None:
        """Warnings are passed to `warn`. If `warn` is None, warnings are reported to `progress`."""
        self.cancelled = cancelled
        """Event that is set once the build is being stopped."""
        self.cache: RemoteCache | None = None
        """Remote cache, if there is one."""
        self._store = store
        self._given_warn = warn
        self._progress = progress
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._writing: list[Future[object]] = []
        self._unsent = 0
        """Bytes of the results that have yet to be written."""
        self._count: Count = ignore_count
        self._offer: Future[None] | None = None
        self._writing_toolchains: list[Future[object]] = []
        self._warned = False
        self.results: RemoteResults | None = None
        """Results in the remote cache, if the build reads them."""

    @contextmanager
    def opened(self, settings: RemoteSettings | None, *, reads: bool = True) -> Iterator[None]:
        """Open the remote cache for `settings`, and read results from the cache if `reads` is true. Raises StoreError."""
        with open_remote_cache(settings, self._warn, self.cancelled) as self.cache:
            if self.cache is not None and reads:
                from epbuild.survey.remote_results import RemoteResults

                self.results = RemoteResults(self.cache, self._store, self._warn)
            if self.cache is not None and self.cache.writes:
                self._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload")
            try:
                yield
            finally:
                if self._pool is not None:
                    if not all(future.done() for future in (*self._writing, *self._writing_toolchains)):
                        self.cancelled.set()  # the build ends early
                    self._pool.shutdown(cancel_futures=True)

    def add(self, key: str, record: Mapping[str, Any], *, more: bool = False) -> None:
        """Write a result in the background, if this build writes to the remote cache.

        If `more` is true, replace a result in the cache that has fewer parts.
        """
        if self._pool is not None and self.cache is not None:
            size = _measure_result(record)
            with self._lock:
                self._unsent += size
                self._writing.append(self._pool.submit(self._publish, self.cache, key, record, size, more=more))

    def offer(self, keys: Collection[str], records: ActionRecords) -> None:
        """Start to upload those of the stored results `keys` that the remote cache lacks, if this build writes to the cache."""
        if self._pool is not None and self.cache is not None and keys:
            self._offer = self._pool.submit(self._add_missing, self.cache, keys, records)

    def add_toolchain(self, key: str, record: Mapping[str, Any]) -> None:
        """Write a toolchain record in the background, if this build writes to the remote cache."""
        if self._pool is not None and self.cache is not None:
            with self._lock:
                self._writing_toolchains.append(self._pool.submit(self.cache.publish, TOOLCHAIN, key, record, self._store))

    def finish(self, actions: int) -> None:
        """Wait for all writes, and report the use of the cache. `actions` is the number of actions that have results."""
        if self.cache is None:
            return
        if self._offer is not None:
            with suppress(Cancelled):
                self._offer.result()
        for future in self._writing_toolchains:
            with suppress(StoreError, Cancelled):
                future.result()  # these records only save other machines time
        self._wait(self.cache.name)
        lost = sum(not future.result() for future in self._writing)
        if lost and not self._warned:
            message = f"{lost} of {format_count(len(self._writing), 'result')} could not be written to the remote cache {self.cache.name}"
            self._warn(
                Problem("EPB524", message, None, "These results are kept here, but other machines must build them themselves.")
            )
        if self.results is not None:
            self.results.warn_of_the_rest()
        found = self.cache.statistics
        if found.asked >= actions > 0 == found.found + found.unusable and not self.cache.writes:
            message = f"the remote cache {self.cache.name} has none of the {format_count(found.asked, 'result')} of this recipe"
            self._warn(Problem("EPB523", message, None, _NOTHING_FOUND))
        if found.asked or self._writing:
            counts = (found.asked, found.found, found.unusable, found.received_bytes, found.published, found.sent_bytes)
            self._progress.report(RemoteCacheUsed(self.cache.name, *counts, found.seconds))

    def _add_missing(self, cache: RemoteCache, keys: Collection[str], records: ActionRecords) -> None:
        from epbuild.plan.remote_record import COMPILE
        from epbuild.remote.cache import Miss
        from epbuild.remote.envelope import Unusable

        for key, found in cache.look_up_all(COMPILE, keys).items():
            is_missing = found == Miss() or isinstance(found, Unusable)
            if is_missing and (record := records.get(key)) is not None:
                self.add(key, record)

    def _publish(self, cache: RemoteCache, key: str, record: Mapping[str, Any], size: int, *, more: bool) -> Published | None:
        from epbuild.plan.remote_record import COMPILE

        unsent = size

        def count(piece: int) -> None:
            nonlocal unsent
            unsent -= piece
            self._count_sent(piece)

        try:
            replace = self.results is not None and key in self.results.broken
            return cache.publish(COMPILE, key, record, self._store, replace=replace, more=more, count=count)
        except (StoreError, Cancelled):
            return None
        finally:
            count(unsent)  # the cache has the result already, or cannot be written

    def _count_sent(self, size: int) -> None:
        with self._lock:
            self._unsent -= size
            count = self._count
        count(size)

    def _wait(self, remote: str) -> None:
        """Wait for the results that are being written, and report the progress."""
        waiting = [future for future in self._writing if not future.done()]
        if not waiting:
            return

        def report(found: ByteProgress) -> None:
            if not found.ended:
                done = sum(future.done() for future in self._writing)
                self._progress.report(ResultsShared(remote, done, results, found.done, total, found.seconds_left))

        results = len(self._writing)
        with ExitStack() as stack:
            with self._lock:
                total = self._unsent
                self._count = stack.enter_context(count_bytes(total, report))
            self._progress.report(ResultsShared(remote, results - len(waiting), results, 0, total))
            wait(waiting)
        self._progress.report(ResultsShared(remote, results, results, total, total, 0.0))

    def _warn(self, problem: Problem) -> None:
        self._warned = self._warned or problem.code == "EPB521"
        if self._given_warn is not None:
            self._given_warn(problem)
        else:
            self._progress.report(Warned(problem))


def _measure_result(record: Mapping[str, Any]) -> int:
    from epbuild.plan.remote_record import COMPILE
    from epbuild.remote.cache import list_blobs

    return sum(blob.size for blob in list_blobs(COMPILE, record))

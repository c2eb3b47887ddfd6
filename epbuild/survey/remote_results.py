"""`RemoteResults`: results in a remote cache for the actions of one build."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobSource, BlobStore
from epbuild.cache.digests import Counting, uncounted
from epbuild.cache.errors import MissingBlob
from epbuild.core.digest import Blob, Count, Write, ignore_count
from epbuild.core.errors import Problem, StepId
from epbuild.core.units import format_count
from epbuild.plan.made import Made
from epbuild.plan.remote_record import COMPILE
from epbuild.remote.cache import LookUp, LostBlob, Miss, NotFetched, RemoteCache, Warn
from epbuild.remote.envelope import RemoteRecord, Unusable
from epbuild.toolchain.identity import TOOLCHAIN

_MAX_WARNINGS = 3
_CREATED_HERE = "It will be created on this machine."
_ALL_CREATED_HERE = "They will be created on this machine."


class RemoteResults:
    """Results in a remote cache for the actions of one build. Each key is looked up once. Instances are thread-safe.

    `warn` is called with a problem for each of the first few unusable results.
    """

    def __init__(self, cache: RemoteCache, store: BlobStore, warn: Warn) -> None:
        self._cache = cache
        self._store = store
        self._warn = warn
        self._found: dict[str, LookUp] = {}
        self._given_up: set[str] = set()
        self.refused: dict[str, str] = {}
        """Reasons why records cannot be used, by key."""
        self._unusable = 0
        self._unanswered = 0
        self.broken: set[str] = set()
        """Keys of valid records whose blobs are lost. Such a record and its blobs have to be uploaded again."""
        self._lock = threading.Lock()

    def find(self, steps: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return the results in the cache as JSON, by key. `steps` maps the keys to look up to step ids. Raises Cancelled."""
        new = {key: step for key, step in steps.items() if key not in self._found}
        for key, found in self._cache.look_up_all(COMPILE, new).items():
            self._found[key] = found
            self._unanswered += found == Miss(answered=False)
            if isinstance(found, Unusable):
                self.refused[key] = str(found)
                self._warn_of_unusable(new[key], str(found))
        records = ((key, self._found[key]) for key in steps)
        return {key: found.record["result"] for key, found in records if isinstance(found, RemoteRecord)}

    def fetch(self, key: str, step: str, counting: Counting = uncounted) -> Mapping[str, Any] | None:
        """Fetch all artifacts of a step's result into the store, and return the result as JSON. Return None if the step has to run.

        `counting` counts the bytes that arrive. Raises StoreError if the store cannot be written, and Cancelled.
        """
        if self._found.get(key) == Miss() and key not in self._given_up:  # another machine may have published it since
            found = self._cache.look_again(COMPILE, key)
            if isinstance(found, RemoteRecord):
                self._found[key] = found
        result = self.find({key: step}).get(key)
        found = self._found[key]
        if result is None or not isinstance(found, RemoteRecord):
            return None
        try:
            with counting(sum(blob.size for blob in found.blobs), "the result") as count:
                for blob in found.blobs:
                    self._cache.fetch(blob, self._store, count)
        except NotFetched as error:
            self._found[key] = Miss()
            self._given_up.add(key)
            if isinstance(error, LostBlob):
                self.broken.add(key)
            self._warn_of_unusable(step, str(error))
            return None
        return result

    def fetch_new(self, key: str, step: str) -> Mapping[str, Any] | None:
        """Fetch a result that another machine has just written. Unlike `fetch`, look up the key even if it was looked up before."""
        self._found[key] = self._cache.look_again(COMPILE, key)
        return self.fetch(key, step)

    def toolchains(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return the toolchain records in the cache, by key. `wanted` maps the keys to look up to toolchain names. Raises Cancelled."""
        found = self._cache.look_up_all(TOOLCHAIN, wanted)
        reasons: dict[str, str] = {}
        for key, record in found.items():
            if isinstance(record, Unusable):
                reasons.setdefault(wanted[key], str(record))
        for name, why in reasons.items():
            message = f"the record of the toolchain '{name}' in the remote cache cannot be used: {why}"
            self._warn(Problem("EPB522", message, None, _CREATED_HERE))
        return {key: record.record for key, record in found.items() if isinstance(record, RemoteRecord)}

    def blobs_of(self, made: Sequence[Made]) -> BlobSource:
        """Return a source for the blobs of results and of their needed results. The source reads the store, or else the remote cache.

        A blob that is in neither of them is reported as missing from the store.
        """
        results = [one.result for item in made for one in (item, *item.needed)]
        sizes = {blob.digest: blob.size for result in results for blob in result.artifacts.values()}
        return _BlobsOfResults(self._cache, self._store, sizes)

    def warn_of_the_rest(self) -> None:
        """Warn about the number of remaining unusable results, and about unanswered requests for results."""
        if self._unanswered and self._cache.is_readable:  # otherwise, a warning has been reported
            message = (
                f"the remote cache {self._cache.name} did not answer the requests for {format_count(self._unanswered, 'result')}"
            )
            self._warn(Problem("EPB521", message, None, _ALL_CREATED_HERE))
        more = self._unusable - _MAX_WARNINGS
        if more > 0:
            message = f"{format_count(more, 'more result')} in the remote cache cannot be used"
            self._warn(Problem("EPB522", message, None, _ALL_CREATED_HERE))

    def _warn_of_unusable(self, step: str, why: str) -> None:
        with self._lock:
            self._unusable += 1
            is_named = self._unusable <= _MAX_WARNINGS
        if is_named:
            self._warn(Problem("EPB522", f"its result in the remote cache cannot be used: {why}", StepId(step), _CREATED_HERE))


class _BlobsOfResults:
    """Source of blobs that reads the store, or else a remote cache. `sizes` has the size of each blob, by digest."""

    def __init__(self, cache: RemoteCache, store: BlobStore, sizes: Mapping[str, int]) -> None:
        self._cache = cache
        self._store = store
        self._sizes = sizes

    def materialize(self, digest: str, destination: str | Path, count: Count = ignore_count) -> None:
        if (lacking := self._find_lacking(digest)) is not None:
            with self._convert_error(digest):
                self._cache.fetch(lacking, self._store)
        self._store.materialize(digest, destination, count)

    def copy(self, digest: str, write: Write, count: Count = ignore_count) -> None:
        """Copy a blob to `write` without adding it to the store."""
        if (lacking := self._find_lacking(digest)) is not None:
            with self._convert_error(digest):
                self._cache.copy(lacking, write)
            count(lacking.size)
        else:
            self._store.copy(digest, write, count)

    def _find_lacking(self, digest: str) -> Blob | None:
        """Return the blob with this digest if the store lacks it. Return None if the store has the blob or the blob's size is unknown."""
        size = self._sizes.get(digest)
        return None if size is None or self._store.has(digest, size) else Blob(digest, size)

    @contextmanager
    def _convert_error(self, digest: str) -> Iterator[None]:
        try:
            yield
        except NotFetched as error:
            raise MissingBlob(digest, self._store.root) from error

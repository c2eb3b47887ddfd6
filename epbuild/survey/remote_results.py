"""`RemoteResults`: a remote cache's results of the actions of one build."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobSource, BlobStore
from epbuild.cache.errors import MissingBlob
from epbuild.core.digest import Blob, Write
from epbuild.core.errors import Problem, StepId
from epbuild.core.units import counted
from epbuild.plan.made import Made
from epbuild.plan.remote_record import COMPILE
from epbuild.remote.cache import LookUp, LostBlob, Miss, NotFetched, RemoteCache, Warn
from epbuild.remote.envelope import RemoteRecord, Unusable
from epbuild.toolchain.identity import TOOLCHAIN

_MOST_WARNINGS = 3
_MADE_HERE = "It is made here."


class RemoteResults:
    """What a remote cache has of the actions of one build. Each key is asked for once. For any thread.

    `warn` is given a problem for each step whose result is there and cannot be used, the first few.
    """

    def __init__(self, cache: RemoteCache, store: BlobStore, warn: Warn) -> None:
        self._cache = cache
        self._store = store
        self._warn = warn
        self._found: dict[str, LookUp] = {}
        self._given_up: set[str] = set()
        self.refused: dict[str, str] = {}
        """Why the record of a key is not used."""
        self._unusable = 0
        self._unanswered = 0
        self.broken: set[str] = set()
        """The keys whose records are sound, and blobs of which are lost: both have to be written again."""
        self._lock = threading.Lock()

    def find(self, steps: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """The results, as JSON, that are there for some keys, each with the step that it is for. Raises Cancelled."""
        new = {key: step for key, step in steps.items() if key not in self._found}
        for key, found in self._cache.look_up_all(COMPILE, new).items():
            self._found[key] = found
            self._unanswered += found == Miss(answered=False)
            if isinstance(found, Unusable):
                self.refused[key] = str(found)
                self._refuse(new[key], str(found))
        records = ((key, self._found[key]) for key in steps)
        return {key: found.record["result"] for key, found in records if isinstance(found, RemoteRecord)}

    def bring(self, key: str, step: str) -> Mapping[str, Any] | None:
        """The result, as JSON, of a key for a step, all of whose artifacts are in the store then; None where it has to be made.

        Raises StoreError where the store cannot be written, and Cancelled.
        """
        if self._found.get(key) == Miss() and key not in self._given_up:  # another machine may have made it since
            found = self._cache.look_again(COMPILE, key)
            if isinstance(found, RemoteRecord):
                self._found[key] = found
        result = self.find({key: step}).get(key)
        found = self._found[key]
        if result is None or not isinstance(found, RemoteRecord):
            return None
        try:
            for blob in found.blobs:
                self._cache.fetch(blob, self._store)
        except NotFetched as error:
            self._found[key] = Miss()
            self._given_up.add(key)
            if isinstance(error, LostBlob):
                self.broken.add(key)
            self._refuse(step, str(error))
            return None
        return result

    def bring_new(self, key: str, step: str) -> Mapping[str, Any] | None:
        """What `bring` does, of a result that another machine has just written: what was known of it before does not count."""
        self._found[key] = self._cache.look_again(COMPILE, key)
        return self.bring(key, step)

    def toolchains(self, wanted: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """The toolchain records that are there for some keys, each with the toolchain that it is for. Raises Cancelled."""
        found = self._cache.look_up_all(TOOLCHAIN, wanted)
        for name in dict.fromkeys(wanted[key] for key, record in found.items() if isinstance(record, Unusable)):
            why = next(str(record) for key, record in found.items() if isinstance(record, Unusable) and wanted[key] == name)
            message = f"the record of the toolchain '{name}' in the remote cache cannot be used: {why}"
            self._warn(Problem("EPB522", message, None, _MADE_HERE))
        return {key: record.record for key, record in found.items() if isinstance(record, RemoteRecord)}

    def blobs_of(self, made: Sequence[Made]) -> BlobSource:
        """Return a source of the blobs of results and of what those were made of, from the store or the remote cache.

        A blob that is in neither counts as lost by the store.
        """
        results = [one.result for item in made for one in (item, *item.needed)]
        sizes = {blob.digest: blob.size for result in results for blob in result.artifacts.values()}
        return _BlobsOfResults(self._cache, self._store, sizes)

    def warn_of_the_rest(self) -> None:
        """Warn of how many more results could not be used than those that were named, and of how many nothing is known."""
        if self._unanswered and self._cache.is_readable:  # else a warning was given
            message = f"the remote cache {self._cache.name} did not answer for {counted(self._unanswered, 'result')}"
            self._warn(Problem("EPB521", message, None, "They are made here."))
        more = self._unusable - _MOST_WARNINGS
        if more > 0:
            message = f"{counted(more, 'more result')} in the remote cache cannot be used"
            self._warn(Problem("EPB522", message, None, "They are made here."))

    def _refuse(self, step: str, why: str) -> None:
        with self._lock:
            self._unusable += 1
            is_named = self._unusable <= _MOST_WARNINGS
        if is_named:
            self._warn(Problem("EPB522", f"its result in the remote cache cannot be used: {why}", StepId(step), _MADE_HERE))


class _BlobsOfResults:
    """The blobs with some sizes, by digest: from the store, where they are there, else from a remote cache."""

    def __init__(self, cache: RemoteCache, store: BlobStore, sizes: Mapping[str, int]) -> None:
        self._cache = cache
        self._store = store
        self._sizes = sizes

    def materialize(self, digest: str, destination: str | Path) -> None:
        if (lacking := self._lacking(digest)) is not None:
            with self._lost(digest):
                self._cache.fetch(lacking, self._store)
        self._store.materialize(digest, destination)

    def copy(self, digest: str, write: Write) -> None:
        """Nothing of it is kept here."""
        if (lacking := self._lacking(digest)) is not None:
            with self._lost(digest):
                self._cache.copy(lacking, write)
        else:
            self._store.copy(digest, write)

    def _lacking(self, digest: str) -> Blob | None:
        """A blob that the store has not."""
        size = self._sizes.get(digest)
        return None if size is None or self._store.has(digest, size) else Blob(digest, size)

    @contextmanager
    def _lost(self, digest: str) -> Iterator[None]:
        try:
            yield
        except NotFetched as error:
            raise MissingBlob(digest, self._store.root) from error

"""Garbage collection of unneeded cache entries, least recently used first.

The caller specifies which entries workspaces need. Entries that were used within the last hour are always kept. The collection is safe
while builds are running:

- Before a build relies on an existing record or blob, it updates the entry's mtime. The collector moves each entry away, and removes it
  only if its mtime is unchanged since the listing. Otherwise it moves the entry back. If the collector moves the entry first, the build
  finds no entry and builds again. If the build updates the mtime first, the collector detects the new mtime.
- Blobs are stored before the record that refers to them, and are kept for at least an hour. So a build that has not stored its record yet
  loses no blob.
- A record is removed before the blobs that only it refers to. So no record, even of a killed collector, refers to a removed blob. The next
  collection removes the remaining blobs.
- A partial download or a remote model is removed only while the collector holds the lease that its readers take.

One race remains: a build may have found a record more than an hour ago, while its workspace does not list the action yet. The blobs of this
record may be removed before the build reads them. If a blob is missing (EPB501), the build creates the result again. It never reads a wrong
blob.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.cache.entries import CacheEntry
from epbuild.cache.garbage import CacheUsers, Garbage
from epbuild.cache.records import ActionRecords

_MODELS_AT_ONCE = 100
"""Maximum number of remote models that are removed together. Each model needs a lease, which is an open file."""

Reason = Literal["unused", "over size", "damaged"]


class Limits(Struct, frozen=True):
    """Limits above which unneeded entries are removed: seconds since their last use, and total bytes of the store."""

    max_age: float
    max_size: int | None = None
    young: float = 3600.0
    """Number of seconds after its last use during which an entry is always kept, as a running build may rely on it."""


@dataclass
class Collected:
    """Outcome of a collection: removed entries with reasons, needed entries, and recently used entries."""

    removed: list[tuple[CacheEntry, Reason]] = field(default_factory=list)
    needed: list[CacheEntry] = field(default_factory=list)
    recent: list[CacheEntry] = field(default_factory=list)

    @property
    def left(self) -> int:
        return sum(entry.size for entry in (*self.needed, *self.recent))


def collect(
    root: Path,
    limits: Limits,
    users: CacheUsers,
    *,
    now: float,
    dry_run: bool = False,
) -> Collected:
    """Remove entries of the store at `root` that exceed `limits`, and return the outcome.

    `now` is the time in Unix seconds. If `dry_run` is set, nothing is removed. Entries that `users` need are kept. Callers must hold a
    lease that excludes other collections. Raises StoreError.
    """
    return _Collection(root, limits, users, now, dry_run).run()


@dataclass
class _Collection:
    root: Path
    limits: Limits
    users: CacheUsers
    now: float
    dry_run: bool

    def __post_init__(self) -> None:
        self._blobs = BlobStore(self.root)
        self._records = ActionRecords(self.root)
        self._garbage = Garbage(self.root)
        self._needs = self.users.needs()
        self._outcome = Collected()
        self._queue: list[tuple[int, str, CacheEntry]] = []
        # List blobs before records: a record that is stored in between refers only to blobs with a recent mtime.
        self._stored = {entry.name: entry for entry in self._blobs.entries()}
        self._named: dict[str, frozenset[str]] = {}
        self._namings = Counter[str]()
        for record in self._records.entries():
            self._add_record(record)

    def run(self) -> Collected:
        garbage = list(self._garbage.entries())
        for entry in garbage:
            if entry.name in self._needs.models:
                self._outcome.needed.append(entry)
                if not self.dry_run:
                    self._garbage.use(entry.name)
            else:
                self._enqueue(entry)
        for digest in [digest for digest in self._stored if self._is_free(digest)]:
            self._enqueue(self._stored.pop(digest))
        queued = sum(entry.size for _, _, entry in self._queue)
        self._remove_queued(queued + self._outcome.left + sum(entry.size for entry in self._stored.values()))
        needed = self._needs.blobs.union(*(self._named.get(key, ()) for key in self._needs.keys))
        for digest, entry in self._stored.items():
            (self._outcome.needed if digest in needed else self._outcome.recent).append(entry)
        return self._outcome

    def _add_record(self, record: CacheEntry) -> None:
        document = self._records.peek(record.name)
        names = frozenset(self.users.blobs_of(document)) if document is not None else frozenset()
        self._named[record.name] = names
        self._namings.update(names)
        # A damaged record is removed even if a build needs its key.
        if document is None or record.name not in self._needs.keys:
            self._enqueue(record)
            return
        self._outcome.needed.append(record)
        if not self.dry_run:
            self._records.use(record.name)

    def _remove_queued(self, total: int) -> None:
        while self._queue:
            entry = heapq.heappop(self._queue)[-1]
            reason = self._find_reason(entry, total)
            if reason is None:
                self._outcome.recent.append(entry)
            elif entry.kind == "remote model" and not self.dry_run:
                total -= self._remove_models(entry, reason, total)
            else:
                total -= self._remove_with_blobs(entry, reason)

    def _remove_models(self, first: CacheEntry, reason: Reason, total: int) -> int:
        """Remove `first` and the next remote models in the queue together, so that `users` is queried once. Return the freed bytes."""
        taken, left = [(first, reason)], total - first.size
        while self._queue and len(taken) < _MODELS_AT_ONCE:
            entry = self._queue[0][-1]
            why = self._find_reason(entry, left) if entry.kind == "remote model" else None
            if why is None:
                break
            heapq.heappop(self._queue)
            taken.append((entry, why))
            left -= entry.size
        gone = self._garbage.remove_models([entry for entry, _ in taken], self.users)
        self._outcome.recent += (entry for entry, _ in taken if entry.name not in gone)
        self._outcome.removed += (item for item in taken if item[0].name in gone)
        return sum(entry.size for entry, _ in taken if entry.name in gone)

    def _remove_with_blobs(self, entry: CacheEntry, reason: Reason) -> int:
        """Remove an entry and return the freed bytes. Blobs that only a removed record refers to are removed as well."""
        if not (self.dry_run or self._remove(entry)):
            self._outcome.recent.append(entry)
            return 0
        self._outcome.removed.append((entry, reason))
        freed = entry.size
        if entry.kind == "record":
            names = self._named.pop(entry.name)
            self._namings.subtract(names)
            for blob in [self._stored.pop(digest) for digest in sorted(names & self._stored.keys()) if self._is_free(digest)]:
                if self._compute_idle_seconds(blob) < self.limits.young:
                    self._outcome.recent.append(blob)
                else:
                    freed += self._remove_with_blobs(blob, reason)
        return freed

    def _find_reason(self, entry: CacheEntry, total: int) -> Reason | None:
        if entry.kind == "damaged":
            return "damaged"
        if self._compute_idle_seconds(entry) < self.limits.young:
            return None
        if self._compute_idle_seconds(entry) > self.limits.max_age:
            return "unused"
        return "over size" if self.limits.max_size is not None and total > self.limits.max_size else None

    def _compute_idle_seconds(self, entry: CacheEntry) -> float:
        """Return the seconds since the last use of an entry."""
        return self.now - entry.used_ns / 1e9

    def _remove(self, entry: CacheEntry) -> bool:
        match entry.kind:
            case "record":
                return self._records.remove(entry)
            case "blob":
                return self._blobs.remove(entry)
            case _:
                return self._garbage.remove(entry)

    def _is_free(self, digest: str) -> bool:
        return not self._namings[digest] and digest not in self._needs.blobs

    def _enqueue(self, entry: CacheEntry) -> None:
        heapq.heappush(self._queue, (entry.used_ns, entry.name, entry))

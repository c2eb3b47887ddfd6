"""Collection of cache entries that no workspace needs, the longest unused first.

What is needed is given by the caller; what was used within the last hour stays in any case. It is safe beside builds that are running:

- a build relies on a record only after it has noted the use as the record's time, and on a blob that was there before only after it has
  given the blob a new time. Here, each is moved out of sight first and removed only if its time is still the one that was read at the
  beginning; else it is put back. Whichever of the two comes second sees what the first did: a build that comes too late finds nothing,
  and makes it again; a collector that comes too late finds the use.
- blobs are stored before the record that names them, and stay young for an hour: a build that has not put its record yet loses none.
- a record goes before the blobs that it alone names. So no record is left, even by a collector that is killed, that names what was
  removed; blobs that are left over go the next time.
- partial downloads and remote models are removed under the lease that those who fetch them hold.

What remains is a build that found a record more than an hour ago and reads its blobs only now, in a workspace that does not name the
action. It finds that the blob is missing (EPB501) and makes the result again; it never reads a wrong one.
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
from epbuild.cache.garbage import Garbage
from epbuild.cache.needs import CacheUsers
from epbuild.cache.records import ActionRecords

_MODELS_AT_ONCE = 100
"""Remote models that are removed under their leases, each of which is an open file."""

Reason = Literal["unused", "over size", "damaged"]


class Limits(Struct, frozen=True):
    """How much a store may keep of what nobody needs: unused for at most so many seconds, and in all at most so many bytes."""

    max_age: float
    max_size: int | None = None
    young: float = 3600.0
    """What was used within so many seconds stays in any case: a build that is running may be about to rely on it."""


@dataclass
class Collected:
    """What came of a collection: what is gone, and why; what is kept because it is needed; what is kept because it was used lately."""

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
    """Remove from the store at `root` what exceeds the `limits` at the time `now` (Unix seconds), or only return what that would be.

    What the `users` need stays. Not for two callers at once: hold a lease. Raises StoreError.
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
        # Blobs before records: a record that is put in between names blobs that are new, or have a new time by then.
        self._stored = {entry.name: entry for entry in self._blobs.entries()}
        self._named: dict[str, frozenset[str]] = {}
        self._namings = Counter[str]()
        for record in self._records.entries():
            self._take_in_record(record)

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
        self._work_off(queued + self._outcome.left + sum(entry.size for entry in self._stored.values()))
        needed = self._needs.blobs.union(*(self._named.get(key, ()) for key in self._needs.keys))
        for digest, entry in self._stored.items():
            (self._outcome.needed if digest in needed else self._outcome.recent).append(entry)
        return self._outcome

    def _take_in_record(self, record: CacheEntry) -> None:
        document = self._records.look(record.name)
        names = frozenset(self.users.blobs_of(document)) if document is not None else frozenset()
        self._named[record.name] = names
        self._namings.update(names)
        # One that cannot be read, as it is damaged or of an older epbuild, is of no use to those who need its key.
        if document is None or record.name not in self._needs.keys:
            self._enqueue(record)
            return
        self._outcome.needed.append(record)
        if not self.dry_run:
            self._records.use(record.name)

    def _work_off(self, total: int) -> None:
        while self._queue:
            entry = heapq.heappop(self._queue)[-1]
            reason = self._reason(entry, total)
            if reason is None:
                self._outcome.recent.append(entry)
            elif entry.kind == "remote model" and not self.dry_run:
                total -= self._take_models(entry, reason, total)
            else:
                total -= self._take(entry, reason)

    def _take_models(self, first: CacheEntry, reason: Reason, total: int) -> int:
        """Remove a remote model, and those that are next to go: what is needed is found once. Returns the bytes that this freed."""
        taken, left = [(first, reason)], total - first.size
        while self._queue and len(taken) < _MODELS_AT_ONCE:
            entry = self._queue[0][-1]
            why = self._reason(entry, left) if entry.kind == "remote model" else None
            if why is None:
                break
            heapq.heappop(self._queue)
            taken.append((entry, why))
            left -= entry.size
        gone = self._garbage.remove_models([entry for entry, _ in taken], self.users)
        self._outcome.recent += (entry for entry, _ in taken if entry.name not in gone)
        self._outcome.removed += (item for item in taken if item[0].name in gone)
        return sum(entry.size for entry, _ in taken if entry.name in gone)

    def _take(self, entry: CacheEntry, reason: Reason) -> int:
        """Remove an entry, and with a record the blobs that it alone named; returns the bytes that this freed."""
        if not (self.dry_run or self._remove(entry)):
            self._outcome.recent.append(entry)
            return 0
        self._outcome.removed.append((entry, reason))
        freed = entry.size
        if entry.kind == "record":
            names = self._named.pop(entry.name)
            self._namings.subtract(names)
            for blob in [self._stored.pop(digest) for digest in sorted(names & self._stored.keys()) if self._is_free(digest)]:
                if self._unused(blob) < self.limits.young:
                    self._outcome.recent.append(blob)
                else:
                    freed += self._take(blob, reason)
        return freed

    def _reason(self, entry: CacheEntry, total: int) -> Reason | None:
        if entry.kind == "damaged":
            return "damaged"
        if self._unused(entry) < self.limits.young:
            return None
        if self._unused(entry) > self.limits.max_age:
            return "unused"
        return "over size" if self.limits.max_size is not None and total > self.limits.max_size else None

    def _unused(self, entry: CacheEntry) -> float:
        """For how many seconds nobody has used an entry."""
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

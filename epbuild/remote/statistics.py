"""Statistics of a remote cache: look-ups, hits, and transferred blobs and bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class RemoteStatistics(Struct, frozen=True):
    """Statistics of one build; `seconds` counts the time with at least one open request."""

    asked: int = 0
    """Look-ups that were answered, by hits or misses."""
    found: int = 0
    unusable: int = 0
    blobs: int = 0
    received_bytes: int = 0
    published: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0


class RemoteTally:
    """Thread-safe counters of the statistics, by the names of its fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._under_way = 0
        self._since = 0.0
        self._seconds = 0.0

    def read(self) -> RemoteStatistics:
        with self._lock:
            running = time.monotonic() - self._since if self._under_way else 0.0
            return RemoteStatistics(**self._counts, seconds=self._seconds + running)

    def add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time of the block."""
        with self._lock:
            if not self._under_way:
                self._since = time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:
                    self._seconds += time.monotonic() - self._since

"""Statistics of a remote cache: look-ups, hits, and transferred blobs and bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class RemoteStatistics(Struct, frozen=True):
    """Statistics of one build. `seconds` is the time during which at least one request was open."""

    asked: int = 0
    """Number of look-ups that were answered, with a hit or a miss."""
    found: int = 0
    unusable: int = 0
    blobs: int = 0
    received_bytes: int = 0
    published: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0


class RemoteTally:
    """Thread-safe counters with the names of the fields of RemoteStatistics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._open_requests = 0
        self._busy_since = 0.0
        self._seconds = 0.0

    def read(self) -> RemoteStatistics:
        with self._lock:
            current = time.monotonic() - self._busy_since if self._open_requests else 0.0
            return RemoteStatistics(**self._counts, seconds=self._seconds + current)

    def add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    @contextmanager
    def time_request(self) -> Iterator[None]:
        """Add the duration of the block to `seconds`. Time in which several requests are open is counted only once."""
        with self._lock:
            if not self._open_requests:
                self._busy_since = time.monotonic()
            self._open_requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._open_requests -= 1
                if not self._open_requests:
                    self._seconds += time.monotonic() - self._busy_since

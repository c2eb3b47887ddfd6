"""The least progress that a transfer has to make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Pace(NamedTuple):
    """Bytes per second that each period of so many seconds has to bring."""

    seconds: float
    bytes_per_second: float


class PaceMeter:
    """Progress of one transfer. Only the time spent in `waiting` counts: the other side is not to blame for the rest."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._seconds = 0.0
        self._bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block."""
        begin = time.monotonic()
        yield
        self._seconds += time.monotonic() - begin

    def keeps(self, count: int) -> bool:
        """Count bytes that were moved, and return whether the transfer is fast enough."""
        self._bytes += count
        if self._seconds < self._pace.seconds:
            return True
        is_fast = self._bytes >= self._seconds * self._pace.bytes_per_second
        self._seconds, self._bytes = 0.0, 0
        return is_fast

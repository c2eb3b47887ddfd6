"""Time limits of a transfer, and the least speed that it has to keep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class Speed(Struct, frozen=True):
    """Least speed, measured over periods of `seconds`."""

    seconds: float
    bytes_per_second: float


class Timeouts(Struct, frozen=True):
    """Limits for a server, in seconds."""

    connect: float = 30.0
    answer: float = 30.0
    """For a whole answer: all of its header, and its body unless the caller reads that in pieces."""
    idle: float = 30.0
    """For the next piece of a body, in either direction."""
    uploaded: float = 300.0
    """For a whole answer to an upload: some servers copy the upload before they answer."""
    speed: Speed = Speed(60.0, 10e3)
    """Least speed of a large body, in either direction."""


class SpeedMeter:
    """Progress of one transfer. Only time spent in `waiting` counts: the other side is not to blame for the rest."""

    def __init__(self, least: Speed) -> None:
        self._least = least
        self._seconds = 0.0
        self._bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block."""
        begin = time.monotonic()
        yield
        self._seconds += time.monotonic() - begin

    def is_fast_enough(self, count: int) -> bool:
        """Count transferred bytes, and return whether the transfer keeps the least speed."""
        self._bytes += count
        if self._seconds < self._least.seconds:
            return True
        is_fast = self._bytes >= self._seconds * self._least.bytes_per_second
        self._seconds, self._bytes = 0.0, 0
        return is_fast

"""Liveness of the machines of a cluster, as its scheduler knows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from epbuild.cluster.executor import Offer, Placement

FROZEN_SECONDS = 30.0
"""After which a machine without a heartbeat counts as gone. Dask's schedulers wait five minutes unless they are set otherwise."""

NOBODY_SECONDS = 60.0
"""How long a build waits for a machine that offers what it needs."""

Clock = Callable[[], float]


class Heartbeats:
    """The heartbeats of machines. The scheduler's times are compared with each other alone, as its clock is another."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}
        """The time of the last one by the scheduler's clock, and when that was new by this one's, by address."""

    def stopped(self, last: Mapping[str, float]) -> list[str]:
        """The addresses without a heartbeat for too long, each once in that time; `last` has the time of each one's last."""
        now, before = self._clock(), self._seen
        self._seen = {
            address: before[address] if address in before and before[address][0] == beat else (beat, now)
            for address, beat in last.items()
        }
        stopped = [address for address, (_, new) in self._seen.items() if now - new >= FROZEN_SECONDS]
        self._seen.update((address, (last[address], now)) for address in stopped)
        return stopped


class Unserved:
    """Since when no machine offers what is asked for. For any thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Placement, float] = {}

    def is_over(self, placement: Placement, offers: Iterable[Offer]) -> bool:
        """Whether there was none for a minute, as often as it is asked."""
        if any(map(placement.allows, offers)):
            self._since.pop(placement, None)
            return False
        now = self._clock()
        return now - self._since.setdefault(placement, now) >= NOBODY_SECONDS

"""Probes in a Dask worker: while it serves, it finds out what it can do.

Dask loads this module by its name in the process of a worker, and calls `dask_setup` before the scheduler knows of it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from epbuild.cache.leases import Cancelled
from epbuild.cache.location import cache_directory
from epbuild.cluster.abilities import Abilities
from epbuild.cluster.labels import PLENTY
from epbuild.compile.probed import Probes
from epbuild.compile.probing import ProbeResult
from epbuild.core.errors import EpbuildError
from epbuild.toolchain.environment import toolchains_here

METRIC = "epbuild"
"""What was found out, in the heartbeats of a worker: for each label, whether it does, and why."""
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.1
_probes: list[WorkerProbe] = []


class WorkerProbe:
    """Finds out what a worker can do, and has the scheduler know."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.abilities = Abilities(Probes(cache_directory()), self._found)
        self._cancelled = threading.Event()
        self._withdrawn: set[str] = set()

    def start(self) -> None:
        """Try what the toolchains that are here are for, in a thread of its own: heartbeats and requests go on."""
        threading.Thread(target=self._survey, name="probes", daemon=True).start()

    def metric(self, worker: Any) -> dict[str, list[str]]:
        """What was found out, for a heartbeat."""
        return {label: [probe.outcome, probe.why] for label, probe in self.abilities.found.items()}

    def _survey(self) -> None:
        while self._worker.status.name != "running":  # before that, the scheduler knows of no worker
            time.sleep(_POLL_SECONDS)
        with suppress(Cancelled, EpbuildError):
            self.abilities.survey(toolchains_here().home, self._cancelled)

    def _found(self, labels: Sequence[str], probe: ProbeResult) -> None:
        offered = [label for label in labels if label in self._worker.state.total_resources]
        if not offered:
            return
        sys.stderr.write(
            f"epbuild: {', '.join(offered)}: {'' if probe.outcome == 'does' else 'not offered any more: '}{probe.why}\n"
        )
        sys.stderr.flush()
        if probe.outcome == "cannot":
            self._withdrawn.update(offered)
            self._offer(offered, 0.0)
        elif again := self._withdrawn.intersection(offered):  # another toolchain has shown more
            self._withdrawn -= again
            self._offer(again, PLENTY)

    def _offer(self, labels: Iterable[str], amount: float) -> None:
        """Have the scheduler know how much there is of labels: of what is none, it gives the worker nothing more that needs it."""
        # Not `worker.set_resources`: what waits here for a label that is gone would wait for ever. What is here already, is declined.
        call = self._worker.scheduler.set_resources(resources=dict.fromkeys(labels, amount), worker=self._worker.contact_address)
        future = asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop)
        with suppress(OSError, TimeoutError, RuntimeError):  # the scheduler is gone; what comes is declined
            future.result(_ANSWER_SECONDS)


def abilities_here() -> Abilities | None:
    """What the worker in this process found out; None where it finds out nothing."""
    return _probes[0].abilities if _probes else None


def dask_setup(worker: Any) -> None:
    """Called by Dask."""
    probe = WorkerProbe(worker)
    _probes[:] = [probe]
    worker.metrics[METRIC] = probe.metric
    worker.loop.add_callback(probe.start)

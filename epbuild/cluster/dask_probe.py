"""Trials in a Dask worker: while it serves, it finds out what it can do.

Dask loads this module by its name in the process of a worker, and calls `dask_setup` before the scheduler knows of it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from epbuild.cache.leases import Cancelled
from epbuild.cache.location import cache_directory
from epbuild.cluster.abilities import Abilities
from epbuild.compile.trial import Trial
from epbuild.compile.trials import Trials
from epbuild.core.errors import EpbuildError
from epbuild.toolchain.environment import toolchains_here

METRIC = "epbuild"
"""What was found out, in the heartbeats of a worker: for each label, whether it does, and why."""
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.1
_probes: list[Probe] = []


class Probe:
    """Finds out what a worker can do, and has the scheduler know."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.abilities = Abilities(Trials(cache_directory()), self._heard)
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Try what the toolchains that are here are for, in a thread of its own: heartbeats and requests go on."""
        threading.Thread(target=self._survey, name="trials", daemon=True).start()

    def metric(self, worker: Any) -> dict[str, list[str]]:
        """What was found out, for a heartbeat."""
        return {label: [trial.outcome, trial.why] for label, trial in self.abilities.found.items()}

    def _survey(self) -> None:
        while self._worker.status.name != "running":  # before that, the scheduler knows of no worker
            time.sleep(_POLL_SECONDS)
        with suppress(Cancelled, EpbuildError):
            self.abilities.survey(toolchains_here().home, self._cancelled)

    def _heard(self, label: str, trial: Trial) -> None:
        if label not in self._worker.state.total_resources:
            return
        sys.stderr.write(f"epbuild: {label}: {'' if trial.outcome == 'does' else 'not offered any more: '}{trial.why}\n")
        sys.stderr.flush()
        if trial.outcome == "cannot":
            self._withdraw(label)

    def _withdraw(self, label: str) -> None:
        """Have the scheduler give the worker nothing more that needs a label; what it has already, it declines itself."""
        # Not `worker.set_resources`: what waits here for a label that is gone would wait for ever.
        told = self._worker.scheduler.set_resources(resources={label: 0.0}, worker=self._worker.contact_address)
        future = asyncio.run_coroutine_threadsafe(told, self._worker.loop.asyncio_loop)
        with suppress(OSError, TimeoutError, RuntimeError):  # the scheduler is gone; what comes is declined
            future.result(_ANSWER_SECONDS)


def abilities_here() -> Abilities | None:
    """What the worker in this process found out; None where it finds out nothing."""
    return _probes[0].abilities if _probes else None


def dask_setup(worker: Any) -> None:
    """Called by Dask."""
    probe = Probe(worker)
    _probes[:] = [probe]
    worker.metrics[METRIC] = probe.metric
    worker.loop.add_callback(probe.start)

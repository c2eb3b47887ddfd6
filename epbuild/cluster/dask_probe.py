"""Probes that determine a Dask worker's abilities while the worker serves.

Dask imports this module by name in a worker's process, and calls `dask_setup` before the scheduler knows the worker.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from epbuild.cache.location import find_cache_directory
from epbuild.cluster.abilities import Abilities
from epbuild.cluster.placement import PLENTY
from epbuild.compile.probing import ProbeResult, Probes
from epbuild.core.errors import Cancelled, EpbuildError
from epbuild.toolchain.environment import list_toolchains

METRIC = "epbuild"
"""Name of the metric in a worker's heartbeats. It has, for each label, the outcome of its probe and the reason."""
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.1
_probes: list[WorkerProbe] = []


class WorkerProbe:
    """Prober of a worker's abilities that reports the results to the scheduler."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.abilities = Abilities(Probes(find_cache_directory()), self._report)
        self._cancelled = threading.Event()
        self._withdrawn: set[str] = set()

    def start(self) -> None:
        """Probe the toolchains of this machine in a thread, so that heartbeats and requests continue."""
        threading.Thread(target=self._survey, name="probes", daemon=True).start()

    def build_metric(self, worker: Any) -> dict[str, list[str]]:
        """Return the results of all probes as a metric of a heartbeat."""
        return {label: [probe.outcome, probe.why] for label, probe in self.abilities.found.items()}

    def _survey(self) -> None:
        while self._worker.status.name != "running":  # before that, the scheduler does not know the worker
            time.sleep(_POLL_SECONDS)
        with suppress(Cancelled, EpbuildError):
            self.abilities.survey(list_toolchains().home, self._cancelled)

    def _report(self, labels: Sequence[str], probe: ProbeResult) -> None:
        """Print the result of a probe, and withdraw or restore the worker's offer of the labels."""
        offered = [label for label in labels if label in self._worker.state.total_resources]
        if not offered:
            return
        reason = probe.why if probe.outcome == "does" else f"no longer offered: {probe.why}"
        sys.stderr.write(f"epbuild: {', '.join(offered)}: {reason}\n")
        sys.stderr.flush()
        if probe.outcome == "cannot":
            self._withdrawn.update(offered)
            self._set_offered_amount(offered, 0.0)
        elif restored := self._withdrawn.intersection(offered):  # another toolchain has the ability
            self._withdrawn -= restored
            self._set_offered_amount(restored, PLENTY)

    def _set_offered_amount(self, labels: Iterable[str], amount: float) -> None:
        """Tell the scheduler that this worker offers `amount` of each of the labels.

        If `amount` is 0, the scheduler sends this worker no actions that need one of the labels.
        """
        # Not `worker.set_resources`: tasks of this worker that wait for a withdrawn label would wait forever. This way, they are declined.
        call = self._worker.scheduler.set_resources(resources=dict.fromkeys(labels, amount), worker=self._worker.contact_address)
        future = asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop)
        with suppress(OSError, TimeoutError, RuntimeError):  # the scheduler is gone; later tasks are declined
            future.result(_ANSWER_SECONDS)


def get_own_abilities() -> Abilities | None:
    """Return the abilities of the worker in this process, or None if the worker does not probe."""
    return _probes[0].abilities if _probes else None


def dask_setup(worker: Any) -> None:
    """Install the probe in a worker. Called by Dask."""
    probe = WorkerProbe(worker)
    _probes[:] = [probe]
    worker.metrics[METRIC] = probe.build_metric
    worker.loop.add_callback(probe.start)

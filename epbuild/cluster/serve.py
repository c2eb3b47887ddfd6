"""Dask worker process that executes requests and reconnects to its scheduler."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from epbuild.catalog.catalog import CPU_EP, known_eps
from epbuild.cluster.abilities import list_possible_abilities
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask import import_distributed
from epbuild.cluster.dask_worker import INSECURE, resolve_worker_settings
from epbuild.cluster.placement import MEMORY, PLENTY, PREPARES, Offer, list_own_labels
from epbuild.core.errors import Argument, PlanError, Problem, suggest_nearest
from epbuild.engine.capacity import get_memory
from epbuild.remote.opening import open_remote

_RETRY_SECONDS = 3.0
_CONNECT_SECONDS = "30s"
"""Timeout for a worker's process to start, import its modules, and connect."""
_DASK_SETTINGS = {
    "distributed.worker.daemon": False,  # its compilers run as child processes
    "distributed.worker.memory.target": False,  # child processes use the memory, not the worker itself
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.worker.profile.enabled": False,  # threads here only wait for compilers
    "distributed.worker.http.routes": [],  # HTTP would be open to all users
}
_DASHBOARD_ADDRESS = "127.0.0.1:0"


class ServingProgress(Protocol):
    """Receiver of the state of a worker."""

    def connected(self, address: str, offer: Offer) -> None:
        """Report that the worker is connected."""

    def waiting(self, address: str, reason: str) -> None:
        """Report that the scheduler cannot be reached and that the worker will retry."""


class Serving(Struct, frozen=True):
    """Settings of a worker: its scheduler, its offer, and whether its remote cache may be used without TLS."""

    address: ClusterAddress
    offer: Offer
    insecure: bool = False


def work(
    address: ClusterAddress,
    progress: ServingProgress,
    *,
    slots: int | None = None,
    memory: int | None = None,
    only: Collection[str] = (),
    insecure: bool = False,
) -> None:
    """Execute actions of a scheduler, at most `slots` at once, until the process is interrupted.

    `only` lists the EPs whose actions are accepted. The entry `prepare` stands for preparations. If `only` is empty, all actions
    are accepted. Raises EpbuildError.
    """
    for ep in only:
        if (ep not in known_eps() or ep == CPU_EP) and ep != PREPARES:
            hint = suggest_nearest(ep, known_eps()) or f"Known EPs: {', '.join(known_eps())}."
            raise PlanError(
                Problem("EPB536", f"the EP '{ep}' is unknown or does not compile ahead of time", Argument(f"--only {ep}"), hint)
            )
    offer = Offer(
        platform.node(),
        list_own_labels(list_possible_abilities(), only),
        slots or os.cpu_count() or 1,
        memory or get_memory() or 0,
    )
    serve(Serving(address, offer, insecure), progress)


def serve(serving: Serving, progress: ServingProgress) -> None:
    """Execute requests until the process is interrupted. After a lost connection, reconnect to the scheduler.

    Environment variables name the remote cache. Raises EpbuildError at once if the remote cache cannot be used.
    """
    environment = {**os.environ, INSECURE: "1"} if serving.insecure else dict(os.environ)
    open_remote(resolve_worker_settings(environment), lambda problem: None).close()
    package = import_distributed()
    with tempfile.TemporaryDirectory(prefix="epbuild-worker-") as scratch:
        asyncio.run(_serve(package, serving, environment, Path(scratch), progress))


async def _serve(
    package: Any, serving: Serving, environment: Mapping[str, str], scratch: Path, progress: ServingProgress
) -> None:
    while True:
        try:
            async with _create_nanny(package, serving, environment, scratch) as nanny:
                progress.connected(serving.address.text, serving.offer)
                await nanny.finished()
                reason = "it disconnected"
        # Dask raises AssertionError if a process starts slowly.
        except (OSError, TimeoutError, RuntimeError, AssertionError) as error:
            reason = str(error) or type(error).__name__
        progress.waiting(serving.address.text, reason)
        await asyncio.sleep(_RETRY_SECONDS)


def _create_nanny(package: Any, serving: Serving, environment: Mapping[str, str], scratch: Path) -> Any:
    """Return Dask's nanny, a supervisor that starts the worker's process and restarts it if it dies."""
    offer = serving.offer
    return package.Nanny(
        serving.address.text,
        nthreads=offer.slots,
        name=f"{offer.machine}-{os.getpid()}",
        memory_limit=0,
        resources={**dict.fromkeys(offer.labels, PLENTY), MEMORY: float(offer.memory)},
        security=serving.address.build_security(),
        local_directory=str(scratch),
        death_timeout=_CONNECT_SECONDS,
        preload=["epbuild.cluster.dask_preload", "epbuild.cluster.dask_probe"],
        host=serving.address.listening_host,
        dashboard_address=_DASHBOARD_ADDRESS,
        silence_logs=50,
        env={name: value for name, value in environment.items() if name.startswith("EPBUILD_")},
        config=_DASK_SETTINGS,
    )

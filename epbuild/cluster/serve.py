"""`serve`: a Dask worker for requests, kept running."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask import distributed
from epbuild.cluster.dask_worker import INSECURE, worker_settings
from epbuild.cluster.executor import Offer
from epbuild.cluster.labels import offered
from epbuild.remote.opening import open_remote

_AGAIN_SECONDS = 3.0
_CONNECT_SECONDS = "30s"
"""Within which a worker's process has begun, with all its imports, and is connected."""
_PLAIN_SETTINGS = {
    "distributed.worker.daemon": False,  # its compilers are its children
    "distributed.worker.memory.target": False,  # what takes memory here are other processes
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.tick.limit": "60s",
    "distributed.worker.profile.enabled": False,  # of threads that wait for compilers
    "distributed.worker.http.routes": [],  # what is served over HTTP is served to everybody
}
_HTTP = "127.0.0.1:0"


class ServingProgress(Protocol):
    """Takes what becomes of a worker."""

    def connected(self, address: str, offer: Offer) -> None:
        """The scheduler knows it."""

    def waiting(self, address: str, reason: str) -> None:
        """The scheduler cannot be reached, and is tried again, until it can."""


class Serving(Struct, frozen=True):
    """A worker: where its scheduler is, what it offers, and whether its remote cache may be spoken to without TLS."""

    address: ClusterAddress
    offer: Offer
    insecure: bool = False


def serve(serving: Serving, progress: ServingProgress) -> None:
    """Execute requests until the process is interrupted; where the scheduler goes away, wait for it to come back.

    The remote cache is that of the environment. Raises EpbuildError where it could not be used, before anything is begun.
    """
    environment = {**os.environ, INSECURE: "1"} if serving.insecure else dict(os.environ)
    open_remote(worker_settings(environment), lambda problem: None).close()
    package = distributed()
    with tempfile.TemporaryDirectory(prefix="epbuild-worker-") as scratch:
        asyncio.run(_serve(package, serving, environment, Path(scratch), progress))


async def _serve(
    package: Any, serving: Serving, environment: Mapping[str, str], scratch: Path, progress: ServingProgress
) -> None:
    while True:
        try:
            async with _nanny(package, serving, environment, scratch) as nanny:
                progress.connected(serving.address.text, serving.offer)
                await nanny.finished()
                reason = "it went away"
        except (OSError, TimeoutError, RuntimeError, AssertionError) as error:  # the last: Dask's, where a process begins slowly
            reason = str(error) or type(error).__name__
        progress.waiting(serving.address.text, reason)
        await asyncio.sleep(_AGAIN_SECONDS)


def _nanny(package: Any, serving: Serving, environment: Mapping[str, str], scratch: Path) -> Any:
    """What starts the worker's process, and starts it again when it dies."""
    offer = serving.offer
    return package.Nanny(
        serving.address.text,
        nthreads=offer.slots,
        name=f"{offer.machine}-{os.getpid()}",
        memory_limit=0,
        resources=dict(offered(offer.labels, offer.memory)),
        security=serving.address.security(),
        local_directory=str(scratch),
        death_timeout=_CONNECT_SECONDS,
        preload=["epbuild.cluster.dask_preload", "epbuild.cluster.dask_probe"],
        host=serving.address.listening_host,
        dashboard_address=_HTTP,
        silence_logs=50,
        env={name: value for name, value in environment.items() if name.startswith("EPBUILD_")},
        config=_PLAIN_SETTINGS,
    )

"""Replies of machines that are slow to send their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster, Worker

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import MEMORY, RELEASE, Placement
from epbuild.cluster.protocol import MachineReply
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import Cancelled
from epbuild.engine.events import EventList
from tests.support.clusters import PATIENCE

pytestmark = pytest.mark.slow

SLOWNESS_SECONDS = 3


class SlowWorker(Worker):
    """Dask worker that delays every result."""

    asked = threading.Event()

    async def get_data(self, comm: Any, **options: Any) -> Any:
        self.asked.set()
        await asyncio.sleep(SLOWNESS_SECONDS)
        return await super().get_data(comm, **options)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "protocol": "tcp://",
        "dashboard_address": None,
        "local_directory": str(tmp_path),
    }
    options["resources"] = {"x": 1, RELEASE: 1, MEMORY: 1 << 30}
    machine: Any = LocalCluster
    with machine(n_workers=1, threads_per_worker=1, processes=False, worker_class=SlowWorker, **options) as cluster:
        yield cluster.scheduler_address


def ask(executor: DaskExecutor) -> MachineReply:
    return executor.execute(ActionRequest("key", "step", "compile", {}, ()), Placement(frozenset({"x"})), EventList())


def test_slow_reply_is_awaited(address: str) -> None:
    executor = DaskExecutor(ClusterAddress(address), threading.Event())
    try:
        assert ask(executor).outcome == "refused"  # by a worker without a signing key
    finally:
        executor.close()


def test_build_can_be_cancelled_while_waiting_for_a_reply(address: str) -> None:
    cancelled = threading.Event()
    executor = DaskExecutor(ClusterAddress(address), cancelled)
    SlowWorker.asked.clear()
    try:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask, executor)
            assert SlowWorker.asked.wait(PATIENCE)
            cancelled.set()
            with pytest.raises(Cancelled):
                waiting.result(PATIENCE)
    finally:
        executor.close()

"""Scheduler that disappears for good while a client waits for requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import Placement
from epbuild.cluster.protocol import MachineReply, SchedulerLostError
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import Cancelled
from epbuild.engine.events import EventList
from tests.support.clusters import Cluster
from tests.support.quick_builds import wait_until

pytestmark = [pytest.mark.gate, pytest.mark.waits]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    try:
        running.start_scheduler()
        yield running
    finally:
        running.stop_scheduler()


def ask(executor: DaskExecutor, key: str) -> MachineReply:
    return executor.execute(ActionRequest(key, "s", "compile", {}, ()), Placement(frozenset({"x"})), EventList())


def test_requests_end_when_the_scheduler_disappears(cluster: Cluster) -> None:
    executor = DaskExecutor(ClusterAddress(f"tcp://127.0.0.1:{cluster.port}"), threading.Event())
    try:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask, executor, "before")
            wait_until(lambda: executor._pending, what="it is asked")
            cluster.stop_scheduler()
            with pytest.raises(SchedulerLostError, match="was lost"):
                waiting.result(20)
            for moment in ("while", "after"):
                with pytest.raises(SchedulerLostError, match="was lost"):
                    pool.submit(ask, executor, moment).result(40)
    finally:
        executor.close()


def test_build_can_be_cancelled_while_the_scheduler_is_sought(cluster: Cluster) -> None:
    cancelled = threading.Event()
    executor = DaskExecutor(ClusterAddress(f"tcp://127.0.0.1:{cluster.port}"), cancelled)
    try:
        cluster.stop_scheduler()
        wait_until(lambda: executor._client.status == "connecting", what="it is sought")
        stopping = threading.Timer(4, cancelled.set)  # after one failed check of the cluster
        stopping.start()
        with pytest.raises(Cancelled):
            ask(executor, "while")
    finally:
        executor.close()

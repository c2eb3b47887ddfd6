"""Hostile workers, clients and schedulers of a cluster: none runs code in a build or in a worker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import MEMORY, RELEASE, Placement
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import BuildError
from epbuild.engine.events import EventList
from tests.support.clusters import PATIENCE, Cluster, GuardedProcess, on, quick, running_cluster
from tests.support.projects import compiled
from tests.support.quick_builds import COMPILES, wait_until

pytestmark = [pytest.mark.gate, pytest.mark.skipif(sys.platform != "linux", reason="ports as Linux shows them")]

HOSTILE_WORKER = """\
import json, os, pickle, sys, types
import numpy
from pathlib import Path
from distributed import get_worker

class Touch:
    def __init__(self, file): self.file = file
    def __reduce__(self): return Path.touch, (Path(self.file),)

class TouchError(Exception):
    def __reduce__(self): return touch, (self.args[0], os.getpid())

def touch(file, writer):
    if os.getpid() != writer:  # Dask reads it in this process as well
        Path(file).touch()
    return TouchError(file)

def run_request(text):
    kind, file = json.loads(text)["step"].split(":", 1)
    worker = get_worker()
    if kind == "error":
        raise TouchError(file)
    if kind == "warning":
        hostile = pickle.dumps(Touch(file))
        worker.log_event("warn", {"message": hostile, "category": hostile})
        worker.log_event(["epbuild", "print"], Touch(file))
        return "no reply"
    if kind == "array":
        return numpy.zeros(3)
    return {"value": Touch(file), "bytes": pickle.dumps(Touch(file)), "number": 5, "nothing": None}[kind]

touch.__module__ = TouchError.__module__ = "hostile_worker"
module = types.ModuleType("epbuild.cluster.dask_worker")
run_request.__module__ = module.__name__
module.run_request = run_request
sys.modules[module.__name__] = module
"""
"""A preload of a plain Dask worker that replaces the function that epbuild's workers call."""

STRANGER = """\
import os, sys
from distributed import Client
from distributed.diagnostics.plugin import WorkerPlugin, NannyPlugin

def act(file):
    open(file, "w").write(os.environ.get("EPBUILD_SIGNING_KEY", "no key"))

class OnWorker(WorkerPlugin):
    def setup(self, worker): act(sys.argv[2] + "-plugin")

class OnNanny(NannyPlugin):
    def setup(self, nanny): act(sys.argv[2] + "-nanny-plugin")

def attempt(try_it):
    try:
        print(try_it())
    except BaseException as error:
        print(type(error).__name__)

client = Client(sys.argv[1], timeout=10)
attempt(lambda: client.submit(act, sys.argv[2] + "-submit", retries=0).result(timeout=10))
attempt(lambda: client.run(act, sys.argv[2] + "-run"))
attempt(lambda: client.run(act, sys.argv[2] + "-nanny", nanny=True))
attempt(lambda: client.register_plugin(OnWorker()))
attempt(lambda: client.register_plugin(OnNanny()))
os._exit(0)
"""
"""A plain Dask client that tries every way to run a function in workers and nannies."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a scheduler with one hostile worker."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile_worker.py").write_text(HOSTILE_WORKER, encoding="utf-8")
    with running_cluster(folder, workers=0) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{cluster.port}", "--host", "127.0.0.1"]
        command += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", str(folder / "hostile_worker.py")]
        command += ["--resources", f"x=1 {RELEASE}=1 {MEMORY}=1000000000", "--local-directory", str(folder / "scratch")]
        worker = GuardedProcess(command, folder / "hostile.log", {})
        try:
            yield cluster
        finally:
            worker.kill()


@pytest.mark.parametrize("kind", ["value", "bytes", "error", "warning", "number", "nothing", "array"])
def test_replies_of_a_hostile_worker_run_no_code_and_are_errors(hostile: Cluster, kind: str, tmp_path: Path) -> None:
    executor = DaskExecutor(ClusterAddress(f"tcp://127.0.0.1:{hostile.port}"), threading.Event())
    try:
        wait_until(lambda: len(executor.offers()) == 1, PATIENCE, "the worker is connected")
        request = ActionRequest(f"key-{kind}", f"{kind}:{tmp_path / 'made'}", "compile", {}, ())
        with pytest.raises(BuildError, match=r"sent no valid reply"):
            executor.execute(request, Placement(frozenset({"x"})), EventList())
    finally:
        executor.close()
    assert not (tmp_path / "made").exists()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a scheduler and a worker of epbuild on loopback, without certificates."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1) as running:
        yield running


def test_without_certificates_a_worker_listens_on_loopback_only(cluster: Cluster) -> None:
    parent = psutil.Process(cluster.workers[0].process.pid)
    processes = [parent, *parent.children(recursive=True)]
    places = [place for process in processes for place in process.net_connections("tcp") if place.status == psutil.CONN_LISTEN]
    assert len(places) >= 2, "the worker, and what keeps it running"
    assert {place.laddr.ip for place in places} == {"127.0.0.1"}


def test_a_stranger_runs_no_code_in_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STRANGER, f"tcp://127.0.0.1:{cluster.port}", str(tmp_path / "ran")]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE, check=False)
    assert len(done.stdout.split()) >= 5, done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "after").mkdir()
    project = quick(tmp_path / "after", cluster, "stranger")
    assert compiled(project.build(*on(cluster))) == COMPILES

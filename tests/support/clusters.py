"""Cluster on this machine: a scheduler, and workers started with `epbuild worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.location import find_toolchain_directory
from epbuild.remote.keys import SigningKey
from tests.support.projects import Project
from tests.support.quick_builds import GROUPS, wait_until, write_model, write_project

resource: Any = pytest.importorskip("resource", reason="Windows has no process groups")

RECOMMENDED = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "60s",
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
}
"""Scheduler settings that docs/guides/cluster.md recommends."""
_PROBES = tempfile.TemporaryDirectory(prefix="epbuild-probes-")
PATIENCE = 90
"""Seconds after which a wait fails its test."""


class GuardedProcess:
    """A process in a group of its own, which is killed even if the test run is killed."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        # Its input closes when the test run ends for any reason. Its own session lets it survive a Ctrl-C.
        guard = ["/bin/sh", "-c", 'read -r _; kill -9 "-$0"', str(self.process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        """Kill the process and its children at once, as a power cut does."""
        self._guard.kill()  # before another process can have the group's number
        self._guard.communicate()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # even if it has ended, as its children may still run
        self.process.wait()


class Worker(GuardedProcess):
    """One `epbuild worker`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        super().__init__(command, log, environment)
        self.log = log

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.log.read_text(encoding="utf-8"), PATIENCE, f"the worker logs '{words}'")

    def freeze(self) -> None:
        """Stop the process and its children, as on a machine that hangs."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)


@dataclass
class Cluster:
    """A scheduler, a remote cache in a directory, and workers."""

    folder: Path
    key: SigningKey = field(default_factory=SigningKey.generate)
    certificates: Path | None = None
    settings: dict[str, str] = field(default_factory=lambda: dict(RECOMMENDED))
    """Environment variables of the scheduler."""
    place: str = ""
    """The address of the remote cache. If empty, its directory is used."""
    probes_all: bool = False
    """True if workers probe all EPs, which takes seconds. Otherwise, they offer QNN and preparations, and share results of probes."""
    scheduler: GuardedProcess | None = None
    port: int = 0
    workers: list[Worker] = field(default_factory=list)

    @property
    def remote(self) -> Path:
        return self.folder / "remote"

    @property
    def address(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    @property
    def recipe_lines(self) -> str:
        """Return the recipe lines that configure the cluster's remote cache."""
        return f"cache: {{remote: '{self.place or self.remote.as_posix()}', trust: ['{self.key.public}']}}\n"

    def start_scheduler(self) -> None:
        described = self.folder / "scheduler.json"
        described.unlink(missing_ok=True)
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--no-dashboard", "--no-show", "--scheduler-file", str(described)]
        if self.certificates is not None:
            own = self.certificates / "scheduler"
            command += ["--protocol", "tls", "--tls-ca-file", str(own / "ca.pem")]
            command += ["--tls-cert", str(own / "cert.pem"), "--tls-key", str(own / "key.pem")]
        self.scheduler = GuardedProcess(command, self.folder / "scheduler.log", {**os.environ, **self.settings})
        wait_until(
            lambda: described.exists() and described.read_text(encoding="utf-8").strip() != "", PATIENCE, "the scheduler begins"
        )
        self.port = int(json.loads(described.read_text(encoding="utf-8"))["address"].rpartition(":")[2])

    def stop_scheduler(self) -> None:
        if self.scheduler is not None:
            self.scheduler.kill()

    def start_worker(
        self,
        *options: str,
        program: Sequence[str] = ("-m", "epbuild"),
        file_size: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Worker:
        """Start a worker without waiting for its connection. `file_size` limits its files in bytes, as a full disk does."""
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        scheme = "tls" if self.certificates is not None else "tcp"
        command = [sys.executable, *program, "worker", f"{scheme}://127.0.0.1:{self.port}", "--slots", "1", *options]
        if not self.probes_all:
            command += [] if "--only" in options else ["--only", "QNNExecutionProvider", "--only", "prepare"]
            (self.folder / f"cache-{number}").mkdir()
            (self.folder / f"cache-{number}" / "probes").symlink_to(_PROBES.name)
        if self.certificates is not None:
            command += ["--tls", str(self.certificates / "worker")]
        variables = {
            **os.environ,
            "EPBUILD_CACHE_DIR": str(self.folder / f"cache-{number}"),
            "EPBUILD_TOOLCHAIN_DIR": str(find_toolchain_directory()),
            "EPBUILD_REMOTE_CACHE": self.place or str(self.remote),
            "EPBUILD_SIGNING_KEY": self.key.text,
            **(environment or {}),
        }
        worker = Worker(command, log, variables)
        self.workers.append(worker)
        if file_size is not None:
            resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (file_size, file_size))
        return worker


@contextmanager
def running_cluster(folder: Path, workers: int = 2, **settings: object) -> Iterator[Cluster]:
    """Run a cluster with connected workers while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, **settings)  # type: ignore[arg-type]
    try:
        cluster.start_scheduler()
        for _ in range(workers):
            cluster.start_worker()
        for worker in cluster.workers:
            worker.wait_for("working for")
        yield cluster
    finally:
        for worker in cluster.workers:
            worker.kill()
        cluster.stop_scheduler()


def quick(folder: Path, cluster: Cluster, mark: str, name: str = "project") -> Project:
    """Return the quick project with the cluster's cache. `mark` makes its action keys unique to a test."""
    project = write_project(Project(folder / name, folder / f"cache-{name}"))
    project.edit("epbuild: 1\n", "epbuild: 1\n" + cluster.recipe_lines)
    project.edit("    toolchain: qnn\n", f"    toolchain: qnn\n    environment: {{MARK: {mark}}}\n")
    return project


def outcomes(events: list[dict[str, Any]]) -> dict[str, tuple[str, str | None]]:
    return {event["step"]: (event["outcome"], event.get("machine")) for event in events if event["event"] == "step_finished"}


def on(cluster: Cluster) -> tuple[str, str]:
    return "--executor", cluster.address


def slow_project(folder: Path, cluster: Cluster, mark: str, name: str = "project") -> Project:
    """Return a project whose compiles are slow enough to be observed."""
    project = quick(folder, cluster, mark, name)
    for seed, model in enumerate(GROUPS):
        write_model(project.folder / f"{model}.onnx", seed, width=3000)
    return project


def compilers(cluster: Cluster) -> set[int]:
    """Return the processes that compile for a cluster of this machine, without the probes of its workers."""
    found = set()
    inside = f"{cluster.folder}{os.sep}"
    for place in Path("/proc").glob("[0-9]*"):
        try:
            folder = str((place / "cwd").readlink())
            if (
                folder.startswith(inside)
                and f"{os.sep}probe-" not in folder
                and b"compile.py\0" in (place / "cmdline").read_bytes()
            ):
                found.add(int(place.name))
        except OSError:
            continue
    return found

"""A cluster on this machine: a scheduler, and workers that are `epbuild worker` as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quick_builds import wait_until

from epbuild.cache.location import toolchain_directory
from epbuild.remote.keys import SigningKey

PATIENCE = 90
"""Seconds after which a wait that should have ended fails its test."""


@dataclass
class Worker:
    """One `epbuild worker`, in a process group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.log.read_text(encoding="utf-8"), PATIENCE, f"the worker logs '{words}'")

    def kill(self) -> None:
        """End it and its children at once, as a power cut does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Cluster:
    """A scheduler, a remote cache in a directory, and workers."""

    folder: Path
    key: SigningKey = field(default_factory=SigningKey.generate)
    certificates: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """Environment variables of the scheduler."""
    scheduler: subprocess.Popen[bytes] | None = None
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
        """What a recipe needs to use the cluster's remote cache."""
        return f"cache: {{remote: '{self.remote.as_posix()}', trust: ['{self.key.public}']}}\n"

    def start_scheduler(self) -> None:
        described = self.folder / "scheduler.json"
        described.unlink(missing_ok=True)
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--no-dashboard", "--no-show", "--scheduler-file", str(described)]
        if self.certificates is not None:
            own = self.certificates / "scheduler"
            command += ["--protocol", "tls", "--tls-ca-file", str(own / "ca.pem")]
            command += ["--tls-cert", str(own / "cert.pem"), "--tls-key", str(own / "key.pem")]
        environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1", **self.settings}
        with (self.folder / "scheduler.log").open("ab") as log:
            self.scheduler = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_until(
            lambda: described.exists() and described.read_text(encoding="utf-8").strip() != "", PATIENCE, "the scheduler begins"
        )
        self.port = int(json.loads(described.read_text(encoding="utf-8"))["address"].rpartition(":")[2])

    def stop_scheduler(self) -> None:
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.wait()

    def start_worker(self, *options: str, **environment: str) -> Worker:
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        scheme = "tls" if self.certificates is not None else "tcp"
        command = [sys.executable, "-m", "epbuild", "worker", f"{scheme}://127.0.0.1:{self.port}", "--slots", "1", *options]
        if self.certificates is not None:
            command += ["--tls", str(self.certificates / "worker")]
        variables = {
            **os.environ,
            "EPBUILD_CACHE_DIR": str(self.folder / f"cache-{number}"),
            "EPBUILD_TOOLCHAIN_DIR": str(toolchain_directory()),
            "EPBUILD_REMOTE_CACHE": str(self.remote),
            "EPBUILD_SIGNING_KEY": self.key.text,
            **environment,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=variables, start_new_session=True)
        worker = Worker(process, log)
        self.workers.append(worker)
        return worker


@contextmanager
def running_cluster(folder: Path, workers: int = 2, **settings: object) -> Iterator[Cluster]:
    """A cluster whose workers are connected; it ends with the block."""
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

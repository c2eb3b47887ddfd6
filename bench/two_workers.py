"""Project of short actions, and a cluster on this machine with a scheduler and two workers of one slot each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
from standin import PACKAGES, SECONDS, make_wheels
from workshop import SCRIPTS, Unable, Workshop

from epbuild.remote.keys import SigningKey

WORKERS = 2
_START_SECONDS = 180
_RECIPE = """\
epbuild: 1
name: short
cache: {{remote: '{remote}', trust: ['{key}']}}
toolchains:
  standin: {{packages: [{packages}]}}
models:
{models}
targets:
  npu:
    toolchain: standin
    ep: QNNExecutionProvider
    provider_options: {{backend_type: htp, soc_model: SM8750}}
    environment: {{{variable}: "{seconds}"}}
groups:
{groups}
outputs:
  - {{layout: directory, path: "dist/${{group}}"}}
"""


class ShortActions:
    """Recipe whose stand-in compiles take `seconds` each, and the files that builds of it leave behind."""

    def __init__(self, workshop: Workshop, actions: int, seconds: float) -> None:
        self.folder = workshop.folder / "short"
        self.recipe = self.folder / "epbuild.yaml"
        self.remote = self.folder / "remote"
        self.key = SigningKey.generate()
        self._workshop = workshop
        self._processes: list[subprocess.Popen[bytes]] = []
        # Install only the stand-in, without a package index.
        wheels, kept = make_wheels(workshop.folder / "wheels"), workshop.folder / "uv"
        self.variables = {"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(kept)}
        self.folder.mkdir()
        workshop.seconds([sys.executable, SCRIPTS / "make_many.py", self.folder / "models", str(actions), "1", "3"])
        names = [f"g{number}" for number in range(actions)]
        text = _RECIPE.format(
            remote=self.remote.as_posix(),
            key=self.key.public,
            packages=", ".join(PACKAGES),
            models="\n".join(f"  {name}: models/{name}/{name}-m0.onnx" for name in names),
            variable=SECONDS,
            seconds=seconds,
            groups="\n".join(f"  {name}: {{models: [{name}], targets: [npu]}}" for name in names),
        )
        self.recipe.write_text(text, encoding="utf-8")

    def build(self, *options: str) -> float:
        """Return the seconds of a build that starts with nothing but its toolchain."""
        self._workshop.forget_results()
        for folder in (self.folder / "dist", self.folder / ".epbuild", self.remote, *self.worker_caches()):
            shutil.rmtree(folder, ignore_errors=True)
        before, command = self._used_by_cluster(), self._workshop.epbuild("run", "-j", str(WORKERS), self.recipe, *options)
        taken = self._workshop.seconds(command, more=self.variables)
        return taken + (self._used_by_cluster() - before)

    def _used_by_cluster(self) -> float:
        """Return the processor time of the cluster's processes, or 0 if the workshop measures elapsed time."""
        if not self._workshop.processor_time:
            return 0.0
        own = (psutil.Process(process.pid) for process in self._processes)
        times = [one.cpu_times() for parent in own for one in (parent, *parent.children(recursive=True))]
        return float(sum(time.user + time.system + time.children_user + time.children_system for time in times))

    def worker_caches(self) -> list[Path]:
        return [self.folder / f"worker-{number}" for number in range(WORKERS)]

    @contextmanager
    def cluster(self) -> Iterator[str]:
        """Run a cluster, and yield its address. Raises Unable."""
        described, environment = self.folder / "scheduler.json", {**self._workshop.environment(), **self.variables}
        with ExitStack() as running:
            command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show"]
            command += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(described)]
            self._start(running, command, self.folder / "scheduler.log", environment)
            _wait(lambda: described.exists() and described.stat().st_size > 0, "the scheduler")
            address = json.loads(described.read_text(encoding="utf-8"))["address"]
            for folder in self.worker_caches():
                own = {"EPBUILD_CACHE_DIR": str(folder), "EPBUILD_REMOTE_CACHE": str(self.remote)}
                log = folder.with_suffix(".log")
                worker = self._workshop.epbuild("worker", address, "--slots", "1")
                self._start(running, worker, log, {**environment, **own, "EPBUILD_SIGNING_KEY": self.key.text})
                _wait(partial(_has_begun, log), "a worker")
            yield address.replace("tcp://", "dask://")

    def _start(self, running: ExitStack, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        output = running.enter_context(log.open("wb"))
        process = running.enter_context(
            subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        )
        self._processes.append(process)
        running.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if os.name == "nt":
        process.kill()
    else:
        os.killpg(process.pid, 9)


def _has_begun(log: Path) -> bool:
    return "working for" in log.read_text(encoding="utf-8")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Unable(f"{what} did not start")
        time.sleep(0.1)

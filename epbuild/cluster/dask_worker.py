"""Functions that clients call in a Dask worker: execute and cancel requests."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import ValidationError

from epbuild.cache.location import find_cache_directory, tag_cache
from epbuild.cluster.dask import import_distributed
from epbuild.cluster.dask_probe import get_own_abilities
from epbuild.cluster.machine import Machine
from epbuild.cluster.protocol import MachineReply
from epbuild.cluster.request import read_request
from epbuild.core.errors import EnvironmentFailure, EpbuildError, Position, Problem, RecipeError
from epbuild.engine.events import Event, StepAdvanced, StepOutput, StepStarted
from epbuild.recipe.remote_address import CacheChoice
from epbuild.remote.opening import open_remote
from epbuild.remote.settings import REMOTE, SIGNING_KEY, RemoteSettings, read_signing_key, resolve_remote_settings
from epbuild.toolchain.environment import list_toolchains

TOPIC = "epbuild"
"""Dask topic for the events of all requests. Each event contains the name of its task."""

INSECURE = "EPBUILD_INSECURE"
"""Environment variable that allows a worker to use its remote cache without TLS."""

_MAX_LINE = 2000
_running: dict[str, threading.Event] = {}
_opening = threading.Lock()
_machines: list[Machine] = []
"""List that contains the machine of this process; empty until the first request."""


def run_request(text: str) -> str:
    """Execute a request and return the reply. Both are JSON text. Called in a thread of a Dask worker."""
    worker = import_distributed().get_worker()
    name, topic = str(worker.name), _Topic(worker, worker.get_current_task())
    topic.begin()
    try:
        request = read_request(text)
    except ValidationError as error:
        return _refuse_request(name, f"cannot read the request: {error}")
    try:
        with _cancellable(topic.task) as cancelled:
            return describe_machine(name).execute(request, topic, cancelled).text
    except EpbuildError as error:
        return MachineReply.failure("refused", name, error).text
    except Exception as error:  # noqa: BLE001 - a bug of epbuild must not become a traceback on the client
        return _refuse_request(name, f"failed with an internal error: {type(error).__name__}: {error}")


def cancel_request(task: str) -> None:
    """Cancel a task that runs in this process. Called by clients."""
    cancelled = _running.get(task)
    if cancelled is not None:
        cancelled.set()


def describe_machine(name: str) -> Machine:
    """Return the machine of this process, configured by environment variables. Raises EpbuildError if it could not publish results.

    If the remote cache is no longer used after failures, it is opened again, because a worker outlives the build that saw the failures.
    """
    with _opening:
        if not _machines or _machines[0].remote.is_given_up:
            root = find_cache_directory()
            tag_cache(root)
            remote = open_remote(resolve_worker_settings(os.environ), _ignore)
            _machines[:] = [Machine(root, list_toolchains(), remote, name, get_own_abilities())]
        return _machines[0]


def resolve_worker_settings(environment: Mapping[str, str]) -> RemoteSettings:
    """Return the settings of a worker's remote cache. The worker trusts only its own results.

    Raises RecipeError if the worker could not publish results.
    """
    signer = read_signing_key(environment)
    if signer is None:
        message = "a worker cannot sign its results without a signing key"
        raise RecipeError(Problem("EPB277", message, hint=f"Create a key with `epbuild cache key`, and set {SIGNING_KEY} to it."))
    choice = CacheChoice(Position("", 1, 1), None, (signer.public,))
    settings = resolve_remote_settings(choice, Path.cwd(), environment, "write", insecure=INSECURE in environment)
    if settings is None:  # impossible in mode "write"
        raise TypeError(REMOTE)
    return settings


def _ignore(problem: Problem) -> None:
    """Ignore a warning, since replies already report errors of the remote cache."""


def _refuse_request(name: str, why: str) -> str:
    problem = Problem("EPB530", f"the worker {why}", None, "Use the same release of epbuild on all machines.")
    return MachineReply.failure("refused", name, EnvironmentFailure(problem)).text


@contextmanager
def _cancellable(task: str) -> Iterator[threading.Event]:
    cancelled = _running[task] = threading.Event()
    try:
        yield cancelled
    finally:
        _running.pop(task, None)


class _Topic:
    """Progress of one task, published to the topic that clients subscribe to."""

    def __init__(self, worker: Any, task: str) -> None:
        self.task = task
        self._worker = worker

    def begin(self) -> None:
        """Report which machine executes the task."""
        self._send(["begun", str(self._worker.name), self._worker.address])

    def report(self, event: Event, /) -> None:
        plain = encode_event(event)
        if plain is not None:
            self._send(plain)

    def _send(self, plain: list[Any]) -> None:
        self._worker.log_event(TOPIC, json.dumps([self.task, plain]))


def encode_event(event: Event) -> list[Any] | None:
    """Return an event as JSON values, or None for a type of event that is not sent to clients."""
    match event:
        case StepStarted(step, doing):
            return ["started", step, doing]
        case StepOutput(step, text, status):
            return ["output", step, text[:_MAX_LINE], status]
        case StepAdvanced(step, doing, done, total, seconds_left):
            return ["advanced", step, doing, done, total, seconds_left]
    return None


def decode_event(plain: object) -> Event | None:
    """Return the event that `encode_event` encoded as `plain`. Return None for any other value."""
    match plain:
        case ["started", str(step), str(doing)]:
            return StepStarted(step, doing)
        case ["output", str(step), str(text), bool(status)]:
            return StepOutput(step, text, status)
        case ["advanced", str(step), str(doing), int(done), int(total), int() | float() as seconds_left]:
            return StepAdvanced(step, doing, done, total, seconds_left)
    return None

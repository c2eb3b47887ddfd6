"""Requests in a Dask worker: the functions that clients have it call."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epbuild.cache.location import cache_directory, tag_cache
from epbuild.cluster.dask import distributed
from epbuild.cluster.dask_probe import abilities_here
from epbuild.cluster.machine import Machine
from epbuild.cluster.reply import MachineReply
from epbuild.cluster.request import read_request
from epbuild.core.errors import EnvironmentFailure, EpbuildError, Position, Problem, RecipeError
from epbuild.core.typed_json import MalformedJson
from epbuild.engine.events import Event, StepOutput, StepStarted
from epbuild.recipe.remote_address import CacheChoice
from epbuild.remote.opening import open_remote
from epbuild.remote.settings import REMOTE, SIGNING_KEY, RemoteSettings, remote_settings, signing_key
from epbuild.toolchain.environment import toolchains_here

TOPIC = "epbuild"
"""The events of all requests, each with the name of its task."""

INSECURE = "EPBUILD_INSECURE"
"""Set in the environment of a worker that may speak to its remote cache without TLS."""

_LONGEST_LINE = 2000
_running: dict[str, threading.Event] = {}
_opening = threading.Lock()
_machines: list[Machine] = []
"""This machine, once it was asked for."""


def run_request(text: str) -> str:
    """Execute a request; returns the reply, as JSON. Called in a thread of a Dask worker."""
    worker = distributed().get_worker()
    name, topic = str(worker.name), _Topic(worker, worker.get_current_task())
    topic.begin()
    try:
        request = read_request(text)
    except MalformedJson as error:
        return _refused(name, f"cannot read the request: {error}")
    try:
        with _cancellable(topic.task) as cancelled:
            return machine_here(name).execute(request, topic, cancelled).text
    except EpbuildError as error:
        return MachineReply.failure("refused", name, error).text
    except Exception as error:  # noqa: BLE001 - a mistake of epbuild's own there is no traceback here
        return _refused(name, f"met an internal error: {type(error).__name__}: {error}")


def cancel_request(task: str) -> None:
    """Have a task end that runs here. Called by clients."""
    cancelled = _running.get(task)
    if cancelled is not None:
        cancelled.set()


def machine_here(name: str) -> Machine:
    """This machine, by the environment of the process. Raises EpbuildError where nothing could be published.

    A remote cache that did not answer is asked again by the next request: a worker lives longer than the breakers of a build.
    """
    with _opening:
        if not _machines or _machines[0].remote.is_given_up:
            root = cache_directory()
            tag_cache(root)
            remote = open_remote(worker_settings(os.environ), _ignore)
            _machines[:] = [Machine(root, toolchains_here(), remote, name, abilities_here())]
        return _machines[0]


def worker_settings(environment: Mapping[str, str]) -> RemoteSettings:
    """The remote cache of a worker, whose own results it trusts. Raises RecipeError where it could not publish there."""
    signer = signing_key(environment)
    if signer is None:
        message = "a worker signs what it makes, and there is no key to sign it"
        raise RecipeError(Problem("EPB277", message, hint=f"Set {SIGNING_KEY}, which `epbuild cache key` makes."))
    choice = CacheChoice(Position("", 1, 1), None, (signer.public,))
    settings = remote_settings(choice, Path.cwd(), environment, "write", insecure=INSECURE in environment)
    if settings is None:  # which it is only where nothing is to be written
        raise TypeError(REMOTE)
    return settings


def _ignore(problem: Problem) -> None:
    """What is wrong with the remote cache shows in each reply."""


def _refused(name: str, why: str) -> str:
    problem = Problem("EPB530", f"it {why}", None, "Use one release of epbuild on all machines.")
    return MachineReply.failure("refused", name, EnvironmentFailure(problem)).text


@contextmanager
def _cancellable(task: str) -> Iterator[threading.Event]:
    cancelled = _running[task] = threading.Event()
    try:
        yield cancelled
    finally:
        _running.pop(task, None)


class _Topic:
    """A `Progress` that clients subscribe to: that of one task."""

    def __init__(self, worker: Any, task: str) -> None:
        self.task = task
        self._worker = worker

    def begin(self) -> None:
        """Report which machine executes it."""
        self._send(["begun", str(self._worker.name), self._worker.address])

    def report(self, event: Event, /) -> None:
        plain = plain_event(event)
        if plain is not None:
            self._send(plain)

    def _send(self, plain: list[Any]) -> None:
        self._worker.log_event(TOPIC, json.dumps([self.task, plain]))


def plain_event(event: Event) -> list[Any] | None:
    """An event as JSON; None for one that is not sent."""
    match event:
        case StepStarted(step, doing):
            return ["started", step, doing]
        case StepOutput(step, text, status):
            return ["output", step, text[:_LONGEST_LINE], status]
    return None


def event_of(plain: object) -> Event | None:
    """An event that was sent; None where it is not one."""
    match plain:
        case ["started", str(step), str(doing)]:
            return StepStarted(step, doing)
        case ["output", str(step), str(text), bool(status)]:
            return StepOutput(step, text, status)
    return None

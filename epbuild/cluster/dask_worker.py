"""Requests in a Dask worker: the functions that clients have it call."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from epbuild.cache.location import cache_directory, tag_cache
from epbuild.cluster.dask import distributed
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
"""The events of all requests, each with its key."""

INSECURE = "EPBUILD_INSECURE"
"""Set in the environment of a worker that may speak to its remote cache without TLS."""

_LONGEST_LINE = 2000
_running: dict[str, threading.Event] = {}


def run_request(text: str) -> str:
    """Execute a request; returns the reply, as JSON. Called in a thread of a Dask worker."""
    try:
        request = read_request(text)
    except MalformedJson as error:
        return _refused(f"cannot read the request: {error}")
    try:
        with _cancellable(request.key) as cancelled:
            return machine_here().execute(request, _Topic(request.key), cancelled).text
    except EpbuildError as error:
        return MachineReply.failure("refused", platform.node(), error).text
    except Exception as error:  # noqa: BLE001 - a mistake of epbuild's own there is no traceback here
        return _refused(f"met an internal error: {type(error).__name__}: {error}")


def cancel_request(key: str) -> None:
    """Have what runs for that key here end. Called by clients on each worker."""
    cancelled = _running.get(key)
    if cancelled is not None:
        cancelled.set()


@cache
def machine_here() -> Machine:
    """This machine, by the environment of the process. Raises EpbuildError where nothing could be published."""
    root = cache_directory()
    tag_cache(root)
    remote = open_remote(worker_settings(os.environ), _ignore)
    return Machine(root, toolchains_here(), remote, str(distributed().get_worker().name))


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


def _refused(why: str) -> str:
    problem = Problem("EPB530", f"{platform.node()} {why}", None, "Use one release of epbuild on all machines.")
    return MachineReply.failure("refused", platform.node(), EnvironmentFailure(problem)).text


@contextmanager
def _cancellable(key: str) -> Iterator[threading.Event]:
    cancelled = _running[key] = threading.Event()
    try:
        yield cancelled
    finally:
        _running.pop(key, None)


class _Topic:
    """A `Progress` that clients subscribe to."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._worker = distributed().get_worker()

    def report(self, event: Event, /) -> None:
        plain = plain_event(event)
        if plain is not None:
            self._worker.log_event(TOPIC, json.dumps([self._key, plain]))


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

"""Provisioning of each toolchain when the first action needs it.

Several toolchains are provisioned in parallel. Each environment is compared with its toolchain's record. If the two differ, the record is
no longer used, and actions that have not started get keys with the new identity.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import Struct

from epbuild.cache.location import find_cache_directory, tag_cache
from epbuild.core.errors import Cancelled, EnvironmentFailure, Problem, StepId, StoreError, ToolchainError
from epbuild.core.redact import conceal_text
from epbuild.engine.events import Progress, Warned
from epbuild.plan.key import describe_differences
from epbuild.plan.steps import Action
from epbuild.session.events import ToolchainFailed, ToolchainInstalling, ToolchainReady, ToolchainStarted
from epbuild.session.request import ONLINE
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.provision import InstallProgress

if TYPE_CHECKING:
    from epbuild.session.lock import HeldLock
    from epbuild.session.toolchains import PlanToolchains

_LOCK_IT = "provisioned only to compute keys; with a lock (`epbuild lock`), this is skipped if all results are shared"
_POLL_SECONDS = 0.2
_STOP_SECONDS = 2.0


class RecordSink(Protocol):
    """Receiver of toolchain records that other machines may use."""

    def add_toolchain(self, key: str, record: Mapping[str, Any]) -> None:
        """Share the record of an environment, if this build writes to a remote cache."""


class ProvisionPolicy(Struct, frozen=True):
    """Policy for provisioning: the recipe's lock, and whether the network may be used."""

    lock: HeldLock
    offline: bool = False
    shares: bool = False
    """True if the build reads results from a remote cache."""


class Provisioning:
    """Provisioner that provisions each toolchain of one build once. Any number of threads may use it."""

    def __init__(
        self, known: PlanToolchains, policy: ProvisionPolicy, sink: RecordSink, progress: Progress, cancelled: threading.Event
    ) -> None:
        self.known = known
        self.warnings: list[Problem] = []
        """Warnings about provisioned toolchains."""
        self._policy = policy
        self._sink = sink
        self._progress = progress
        self._cancelled = cancelled
        self._futures: dict[str, Future[Environment]] = {}
        """Environments of toolchains that did not exist when the build began, by name."""
        self._guard = threading.Lock()
        self._refused: set[str] = set()
        self._noted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not all(future.done() for future in self._futures.values()):
            self._cancelled.set()  # no action needs the toolchains anymore
            wait(self._futures.values(), _STOP_SECONDS)

    def record(self) -> None:
        """Record the identities of environments that match the lock, and identities from a remote cache."""
        with suppress(StoreError):  # records only save time
            self.known.remember_known()
        for name, environment in self.known.environments.items():
            if name not in self._futures:
                self._record(name, environment)

    def provision_unknown(self, actions: Iterable[Action]) -> None:
        """Provision all toolchains with an unknown identity in parallel, as keys depend on the identities. Raises ToolchainError."""
        unknown = [action for action in actions if action.runs_in is not None and self.known.of(action) is None]
        names = [get_toolchain_name(action) for action in unknown if self.known.is_for_here(action)]
        self.begin(names)
        for name in dict.fromkeys(names):
            self._wait(name)

    def begin(self, names: Iterable[str]) -> None:
        """Start provisioning toolchains in the background, unless they exist or are already being provisioned."""
        with self._guard:
            for name in dict.fromkeys(names):
                if name not in self.known.environments and name not in self._futures:
                    future: Future[Environment] = Future()
                    self._futures[name] = future
                    threading.Thread(target=self._fulfill, args=(name, future), name=f"toolchain {name}", daemon=True).start()

    def is_refused(self, action: Action) -> bool:
        """Return whether the toolchain of an action has turned out to differ from the toolchain's record."""
        return bool(self._refused) and get_toolchain_name(action) in self._refused

    def environment(self, action: Action) -> Environment:
        """Return the environment of an action. Provision the environment if it is missing.

        Raises ToolchainError, EnvironmentFailure if the action cannot run on this machine, and Cancelled.
        """
        if not self.known.is_for_here(action):
            reason = self.known.explain_obstacle(action)
            raise EnvironmentFailure(
                Problem("EPB416", reason, StepId(action.id), "Build this step on a machine that can run it.")
            )
        name = get_toolchain_name(action)
        if name not in self.known.environments:
            self.begin([name])
            self._wait(name)
        return self.known.environments[name]

    def current(self, action: Action) -> Environment:
        """Return the current state of an action's environment. Raises the same errors as `environment`."""
        now = self.known.environments[get_toolchain_name(action)] = self.environment(action).refresh()
        return now

    def _wait(self, name: str) -> None:
        future = self._futures.get(name)
        if future is None:
            return
        while not future.done():
            wait([future], _POLL_SECONDS)
            if self._cancelled.is_set():
                raise Cancelled(name)
        future.result()

    def _fulfill(self, name: str, future: Future[Environment]) -> None:
        try:
            future.set_result(self._provision(name))
        except BaseException as error:  # noqa: BLE001 - waiting actions raise it
            future.set_exception(error)

    def _provision(self, name: str) -> Environment:
        begin, toolchain = time.monotonic(), self.known.needs[name].toolchain
        is_ready = self.known.is_ready(name)
        if not is_ready:
            if self._policy.offline:
                raise ToolchainError(
                    Problem("EPB525", f"the toolchain '{name}' has not been provisioned yet", toolchain.where, ONLINE)
                )
            tag_cache(find_cache_directory())
            self._progress.report(
                ToolchainStarted(name, f"creating an environment with {conceal_text(', '.join(toolchain.packages))}")
            )
        try:
            environment = self.known.prepare(name, InstallProgress(_Installation(name, self._progress), self._cancelled))
        except BaseException:
            self._progress.report(ToolchainFailed(name))
            raise
        if not is_ready:
            seconds, note = time.monotonic() - begin, self._make_note(name)
            self._progress.report(ToolchainReady(name, environment.onnxruntime, seconds, note))
        self._compare(name, environment)
        doubts = self._policy.lock.check_toolchains([toolchain], {name: environment})
        for problem in doubts:
            self._warn(problem)
        self.known.environments[name] = environment
        if not doubts:
            self._record(name, environment)
        return environment

    def _make_note(self, name: str) -> str:
        """Return a hint on how to avoid provisioning. Empty if no hint applies, or if the hint was returned before."""
        toolchain, lock = self.known.needs[name].toolchain, self._policy.lock
        if self._noted or not self._policy.shares or lock.exists or toolchain.interpreter is not None:
            return ""
        self._noted = True
        return _LOCK_IT

    def _compare(self, name: str, environment: Environment) -> None:
        """Stop using the record of a toolchain if the record differs from the environment, and warn about it."""
        recorded, needs = self.known.recorded(name), self.known.needs[name]
        if recorded is None:
            return
        changes = describe_differences(
            {"toolchain": recorded.identity(needs.entries, needs.packages)},
            {"toolchain": environment.identity(needs.entries, needs.packages)},
        )
        if changes:
            self._refused.add(name)
            more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            message = f"the toolchain '{name}' does not match its record: {changes[0]}{more}"
            hint = "The record is no longer used. The next build rebuilds the results that were restored with it."
            self._warn(Problem("EPB312", message, needs.toolchain.where, hint))

    def _record(self, name: str, environment: Environment) -> None:
        for key, record in self.known.records(name, environment).items():
            with suppress(StoreError):
                self.known.remember({key: record})
            self._sink.add_toolchain(key, record)

    def _warn(self, problem: Problem) -> None:
        self.warnings.append(problem)
        self._progress.report(Warned(problem))


class _Installation(Struct, frozen=True):
    """Reporter of the progress of an installation."""

    toolchain: str
    progress: Progress

    def installing(self, doing: str, done: int, total: int) -> None:
        self.progress.report(ToolchainInstalling(self.toolchain, conceal_text(doing), done, total))


def get_toolchain_name(action: Action) -> str:
    """Return the name of the toolchain that an action runs in; empty if the action runs in no toolchain."""
    return action.runs_in.toolchain.name if action.runs_in is not None else ""

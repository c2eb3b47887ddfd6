"""Loop that runs actions in as many places as there are jobs."""

from __future__ import annotations

import queue
import threading
import time
from typing import Protocol

from epbuild.core.errors import EpbuildError
from epbuild.engine.scheduler import Scheduler

_STOP_SECONDS = 1.5  # for running actions to end when the build is stopped
_POLL_SECONDS = 0.2  # maximal delay of an interrupt on platforms where waiting blocks signals

_Ended = tuple[str, BaseException]
"""Failed action, with what it raised."""


class Executor(Protocol):
    """Executor of actions. `execute` is called in several threads at once, the other methods in one."""

    def execute(self, action: str, /) -> None:
        """Execute an action. Raises EpbuildError if it fails."""

    def fail(self, action: str, error: EpbuildError, /) -> bool:
        """Record that an action failed. Return whether the failure is allowed, so that the build goes on."""

    def skip(self, action: str, /) -> None:
        """Record that an action was not started."""


class Idle:
    """Running actions that occupy no job now, as they wait, or only read and write files. Any number of threads may use it."""

    def __init__(self) -> None:
        self._actions: set[str] = set()
        self._ended: queue.SimpleQueue[_Ended | None] | None = None

    def __len__(self) -> int:
        return len(self._actions)

    def wake(self, ended: queue.SimpleQueue[_Ended | None]) -> None:
        """Put None into `ended` whenever an action is added, to wake a loop that waits there."""
        self._ended = ended

    def add(self, action: str) -> None:
        self._actions.add(action)
        if self._ended is not None:
            self._ended.put(None)

    def discard(self, action: str) -> None:
        """Record that the action continues, or ended. An action that took its slot keeps the slot."""
        self._actions.discard(action)


def drive(
    scheduler: Scheduler,
    executor: Executor,
    *,
    jobs: int,
    keep_going: bool,
    cancelled: threading.Event,
    idle: Idle | None = None,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Execute all actions, at most `jobs` at once.

    Other actions may run in the places of those that are `idle`. Actions that depend on a failed one are skipped. Unless `keep_going`, the
    first failure that is not allowed also skips all actions that have not started. Any error but EpbuildError, and Ctrl-C, sets
    `cancelled`, waits for running actions, and is raised.
    """
    workers = _Workers(scheduler, executor, jobs, Idle() if idle is None else idle)
    try:
        _work_off(workers, poll_seconds, keep_going=keep_going)
    except BaseException:
        cancelled.set()
        # Actions end within moments, except one that reads or writes a large file: it ends with the process.
        workers.end(_STOP_SECONDS)
        raise
    workers.end()


class _Workers:
    """Threads that execute actions. They are reused: starting one per action takes a fifth of the time to emit a small output.

    A thread that finished an action takes the next one itself and wakes no other thread for that. On two cores, a third thread between
    every two actions would delay the two that work.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, jobs: int, idle: Idle) -> None:
        self.ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        """Failed actions for the loop, and None if a place became free or no action runs anymore."""
        self._scheduler = scheduler
        self._executor = executor
        self._jobs = jobs
        self._idle = idle
        self._lock = threading.Lock()
        """Guards the scheduler and the set of running actions."""
        self._running: set[str] = set()
        self._begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        idle.wake(self.ended)

    def fill(self) -> bool:
        """Start as many actions as there are places. Return whether any runs."""
        with self._lock:
            while (action := self._next()) is not None:
                self._begin(action)
            return bool(self._running)

    def fail(self, action: str, error: EpbuildError, *, keep_going: bool) -> None:
        """Record that an action failed, and skip the actions that will not run because of it."""
        with self._lock:  # else another action might start meanwhile
            self._running.remove(action)
            followers = self._scheduler.fail(action)
            goes_on = self._executor.fail(action, error) or keep_going
            for follower in followers + ([] if goes_on else self._scheduler.abandon()):
                self._executor.skip(follower)

    def end(self, seconds: float | None = None) -> None:
        """Start no more actions, and wait for the running ones, at most `seconds`."""
        self._stopped = True
        deadline = time.monotonic() + seconds if seconds is not None else None
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()) if deadline is not None else None)

    def _next(self) -> str | None:
        """Return the next action and count it as running, if there is one and a place for it."""
        if self._stopped or len(self._running) >= self._jobs + len(self._idle):
            return None
        action = self._scheduler.next()
        if action is not None:
            self._running.add(action)
        return action

    def _begin(self, action: str) -> None:
        self._begun.put(action)
        if len(self._threads) < len(self._running):
            thread = threading.Thread(target=self._work, name=f"action-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (begun := self._begun.get()) is not None:
            action: str | None = begun
            while action is not None:
                try:
                    self._executor.execute(action)
                    following = self._finish(action)
                except BaseException as error:  # noqa: BLE001 - the loop handles every error
                    self.ended.put((action, error))
                    break
                action = following

    def _finish(self, action: str) -> str | None:
        """Mark an action done. Return the next action of this thread, and start others in other threads."""
        with self._lock:
            self._running.remove(action)
            self._scheduler.finish(action)
            following = self._next()
            while following is not None and (more := self._next()) is not None:
                self._begin(more)
            if not self._running:
                self.ended.put(None)
            return following


def _work_off(workers: _Workers, poll_seconds: float, *, keep_going: bool) -> None:
    """Run the loop of `drive`. Raises any error of an action but EpbuildError."""
    while workers.fill():
        try:
            end = workers.ended.get(timeout=poll_seconds)
        except queue.Empty:
            continue
        if end is None:
            continue  # a place became free, or no action runs
        action, error = end
        if not isinstance(error, EpbuildError):
            raise error
        workers.fail(action, error, keep_going=keep_going)

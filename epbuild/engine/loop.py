"""Loop that runs actions in parallel, in one slot for each job."""

from __future__ import annotations

import queue
import threading
import time
from typing import Protocol

from epbuild.core.errors import EpbuildError
from epbuild.engine.scheduler import Scheduler

_STOP_SECONDS = 1.5  # grace period for running actions when the build is stopped
_POLL_SECONDS = 0.2  # maximum delay of an interrupt on platforms where a wait blocks signals

_Ended = tuple[str, BaseException]
"""Id of a failed action, and the exception that it raised."""


class Executor(Protocol):
    """Executor of actions. `execute` is called from several threads at the same time, other methods from one thread at a time."""

    def execute(self, action: str, /) -> None:
        """Execute an action. Raises EpbuildError if it fails."""

    def fail(self, action: str, error: EpbuildError, /) -> bool:
        """Record that an action failed. Return True if the failure is allowed, so that the build continues."""

    def skip(self, action: str, /) -> None:
        """Record that an action was not started."""


class IdleActions:
    """Thread-safe set of running actions that do not need a job slot now, because they wait or only read and write files."""

    def __init__(self) -> None:
        self._actions: set[str] = set()
        self._ended: queue.SimpleQueue[_Ended | None] | None = None

    def __len__(self) -> int:
        return len(self._actions)

    def wake(self, ended: queue.SimpleQueue[_Ended | None]) -> None:
        """Put None into `ended` whenever an action becomes idle. This wakes a loop that waits for an item of `ended`."""
        self._ended = ended

    def add(self, action: str) -> None:
        self._actions.add(action)
        if self._ended is not None:
            self._ended.put(None)

    def discard(self, action: str) -> None:
        """Record that an action has ended or is no longer idle. An action that has started in its slot keeps running."""
        self._actions.discard(action)


def drive(
    scheduler: Scheduler,
    executor: Executor,
    *,
    jobs: int,
    keep_going: bool,
    cancelled: threading.Event,
    idle: IdleActions | None = None,
    poll_seconds: float = _POLL_SECONDS,
) -> None:
    """Execute all actions, at most `jobs` at once.

    Other actions may run in the slots of `idle` actions. Actions that depend on a failed action are skipped. Without
    `keep_going`, the first failure that is not allowed also skips all actions that have not started. On Ctrl-C, or on any error except
    EpbuildError, `drive` sets `cancelled`, waits for running actions, and raises the error.
    """
    workers = _Workers(scheduler, executor, jobs, IdleActions() if idle is None else idle)
    try:
        _run_all(workers, poll_seconds, keep_going=keep_going)
    except BaseException:
        cancelled.set()
        # Most actions end quickly. An action that reads or writes a large file ends with the process.
        workers.end(_STOP_SECONDS)
        raise
    workers.end()


class _Workers:
    """Threads that execute actions. They are reused, because starting one takes a fifth of the time needed to emit a small output.

    A thread that has finished an action starts the next action itself. If a third thread had to hand out every action, it would
    delay the two working threads of a machine with two cores.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, jobs: int, idle: IdleActions) -> None:
        self.ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        """Failed actions for the loop. None means that a slot became free or that no action is running."""
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
        """Start actions in all free slots. Return whether any action is running."""
        with self._lock:
            while (action := self._take_next()) is not None:
                self._begin(action)
            return bool(self._running)

    def fail(self, action: str, error: EpbuildError, *, keep_going: bool) -> None:
        """Record that an action failed, and skip the actions that will not run because of the failure."""
        with self._lock:  # no other action may start before all skipped actions are recorded
            self._running.remove(action)
            followers = self._scheduler.fail(action)
            goes_on = self._executor.fail(action, error) or keep_going
            for follower in followers + ([] if goes_on else self._scheduler.abandon()):
                self._executor.skip(follower)

    def end(self, seconds: float | None = None) -> None:
        """Stop starting actions, and wait for running actions for at most `seconds`."""
        self._stopped = True
        deadline = time.monotonic() + seconds if seconds is not None else None
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()) if deadline is not None else None)

    def _take_next(self) -> str | None:
        """Return the next action and count it as running. Return None if no action is ready or no slot is free."""
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
        """Mark an action as done. Return the next action for this thread, and start further actions in other threads."""
        with self._lock:
            self._running.remove(action)
            self._scheduler.finish(action)
            following = self._take_next()
            while following is not None and (more := self._take_next()) is not None:
                self._begin(more)
            if not self._running:
                self.ended.put(None)
            return following


def _run_all(workers: _Workers, poll_seconds: float, *, keep_going: bool) -> None:
    """Run actions until none is left. Raises any error of an action except EpbuildError."""
    while workers.fill():
        try:
            end = workers.ended.get(timeout=poll_seconds)
        except queue.Empty:
            continue
        if end is None:
            continue  # a slot became free, or no action is running
        action, error = end
        if not isinstance(error, EpbuildError):
            raise error
        workers.fail(action, error, keep_going=keep_going)

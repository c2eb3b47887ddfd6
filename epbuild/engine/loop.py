"""The loop that keeps as many actions running as there are places."""

from __future__ import annotations

import queue
import threading
import time

from epbuild.core.errors import EpbuildError
from epbuild.engine.action import Executor
from epbuild.engine.scheduler import Scheduler

_STOP_SECONDS = 1.5  # how long what runs may take to end when the build is being stopped
_POLL_SECONDS = 0.2  # how long an interrupt may go unnoticed on platforms where waiting holds signals back


_Ended = tuple[str, BaseException]
"""An action that has failed, and what it raised."""


class Idle:
    """Those of the running actions that need no place at the moment: they wait, or only read and write files. For any thread."""

    def __init__(self) -> None:
        self._actions: set[str] = set()
        self._ended: queue.SimpleQueue[_Ended | None] | None = None

    def __len__(self) -> int:
        return len(self._actions)

    def wake(self, ended: queue.SimpleQueue[_Ended | None]) -> None:
        """Have a loop that waits for an action to end go on, with None, when there is one more of them."""
        self._ended = ended

    def add(self, action: str) -> None:
        self._actions.add(action)
        if self._ended is not None:
            self._ended.put(None)

    def discard(self, action: str) -> None:
        """The action goes on, or has ended. The one that has got its place keeps that."""
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
    """Have every action executed, at most `jobs` at once, until all have ended.

    Others may run in the place of those that are `idle`. What depends on an action that fails is skipped. Unless `keep_going`, the first
    failure that is not allowed also skips what has not started. Anything else that is raised than EpbuildError, and Ctrl-C, sets
    `cancelled`, waits for what runs, and goes up.
    """
    workers = _Workers(scheduler, executor, jobs, Idle() if idle is None else idle)
    try:
        _work_off(workers, poll_seconds, keep_going=keep_going)
    except BaseException:
        cancelled.set()
        # Each ends within moments, but for one that reads or writes a large file: that one ends with the process.
        workers.end(_STOP_SECONDS)
        raise
    workers.end()


class _Workers:
    """The threads that execute actions, kept: to start one for each action takes as long as a fifth of publishing a small output.

    A thread that has done its action takes the next one itself, and wakes no other for that: on two cores, a third thread between each two
    actions of two others is what these wait for.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, jobs: int, idle: Idle) -> None:
        self.ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        """What the loop has to look at: actions that have failed, and None where there is a place, or nothing runs any more."""
        self._scheduler = scheduler
        self._executor = executor
        self._jobs = jobs
        self._idle = idle
        self._lock = threading.Lock()
        """Held for the scheduler, and for what runs."""
        self._running: set[str] = set()
        self._begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        idle.wake(self.ended)

    def fill(self) -> bool:
        """Begin as many actions as there are places; returns whether any runs."""
        with self._lock:
            while (action := self._next()) is not None:
                self._begin(action)
            return bool(self._running)

    def fail(self, action: str, error: EpbuildError, *, keep_going: bool) -> None:
        """Take note of an action that failed, and skip what is not executed for that."""
        with self._lock:  # else something might begin meanwhile
            self._running.remove(action)
            followers = self._scheduler.fail(action)
            goes_on = self._executor.fail(action, error) or keep_going
            for follower in followers + ([] if goes_on else self._scheduler.abandon()):
                self._executor.skip(follower)

    def end(self, seconds: float | None = None) -> None:
        """Begin nothing more, and wait until what has begun has ended, for so long at most."""
        self._stopped = True
        deadline = time.monotonic() + seconds if seconds is not None else None
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()) if deadline is not None else None)

    def _next(self) -> str | None:
        """The next action, which runs from now on, if there is one and a place for it."""
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
                except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to know
                    self.ended.put((action, error))
                    break
                action = following

    def _finish(self, action: str) -> str | None:
        """Take note of an action that is done; returns what its thread is to do next. What can begin beside that begins in others."""
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
    """What `drive` does as long as nothing is wrong but actions."""
    while workers.fill():
        try:
            end = workers.ended.get(timeout=poll_seconds)
        except queue.Empty:
            continue
        if end is None:
            continue  # there is one more place, or nothing runs
        action, error = end
        if not isinstance(error, EpbuildError):
            raise error
        workers.fail(action, error, keep_going=keep_going)

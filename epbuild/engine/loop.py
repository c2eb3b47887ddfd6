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


_Ended = tuple[str, BaseException | None]
"""An action that has ended, and what it raised."""


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
    workers = _Workers(executor)
    try:
        _work_off(scheduler, executor, workers, jobs, Idle() if idle is None else idle, poll_seconds, keep_going=keep_going)
    except BaseException:
        cancelled.set()
        # Each ends within moments, but for one that reads or writes a large file: that one ends with the process.
        workers.end(_STOP_SECONDS)
        raise
    workers.end()


class _Workers:
    """The threads that execute actions, kept: to start one for each action takes as long as a fifth of publishing a small output."""

    def __init__(self, executor: Executor) -> None:
        self.ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self.running: set[str] = set()
        """The actions that have begun, until `finish`."""
        self._executor = executor
        self._begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def begin(self, action: str) -> None:
        self.running.add(action)
        self._begun.put(action)
        if len(self._threads) < len(self.running):
            thread = threading.Thread(target=self._work, name=f"action-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self, action: str) -> None:
        self.running.remove(action)

    def end(self, seconds: float | None = None) -> None:
        """Wait until what has begun has ended, for so long at most."""
        deadline = time.monotonic() + seconds if seconds is not None else None
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()) if deadline is not None else None)

    def _work(self) -> None:
        while (action := self._begun.get()) is not None:
            try:
                self._executor.execute(action)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop has to know
                self.ended.put((action, error))
            else:
                self.ended.put((action, None))


def _work_off(
    scheduler: Scheduler,
    executor: Executor,
    workers: _Workers,
    jobs: int,
    idle: Idle,
    poll_seconds: float,
    *,
    keep_going: bool,
) -> None:
    """What `drive` does as long as nothing is wrong but actions."""
    idle.wake(workers.ended)
    while True:
        while len(workers.running) < jobs + len(idle) and (action := scheduler.next()) is not None:
            workers.begin(action)
        if not workers.running:
            return
        try:
            end = workers.ended.get(timeout=poll_seconds)
        except queue.Empty:
            continue
        if end is None:
            continue  # there is one more place
        action, error = end
        workers.finish(action)
        if error is None:
            scheduler.finish(action)
        elif isinstance(error, EpbuildError):
            followers = scheduler.fail(action)
            goes_on = executor.fail(action, error) or keep_going
            for follower in followers + ([] if goes_on else scheduler.abandon()):
                executor.skip(follower)
        else:
            scheduler.fail(action)
            raise error

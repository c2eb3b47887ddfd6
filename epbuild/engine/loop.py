"""Loop that runs actions in parallel, in one slot for each job."""

from __future__ import annotations

import queue
import threading
import time
from typing import Protocol

from msgspec import Struct

from epbuild.core.errors import EpbuildError
from epbuild.engine.scheduler import Scheduler

_STOP_SECONDS = 1.5  # grace period for running actions when the build is stopped
_POLL_SECONDS = 0.2  # maximum delay of an interrupt on platforms where a wait blocks signals

_MAX_STORING = 4  # further compiles would only queue for the disk

_Ended = tuple[str, BaseException | None]
"""Id of an action that has ended, and the exception that it raised, if any."""


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


class Slot(Struct, frozen=True):
    """Job slot of a running action."""

    action: str
    idle: IdleActions

    def release(self) -> None:
        """Let another action start while this one stores its result, unless many actions already do."""
        if len(self.idle) < _MAX_STORING:
            self.idle.add(self.action)


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
    idle = IdleActions() if idle is None else idle
    begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
    idle.wake(ended)
    running: set[str] = set()
    # Daemon threads, because an action that reads or writes a large file ends with the process. They are reused, because a busy machine
    # takes a millisecond to start one.
    threads: list[threading.Thread] = []

    def work() -> None:
        while (action := begun.get()) is not None:
            try:
                executor.execute(action)
            except BaseException as error:  # noqa: BLE001 - handled below, in the thread that waits
                ended.put((action, error))
            else:
                ended.put((action, None))

    def stop(seconds: float | None = None) -> None:
        deadline = time.monotonic() + seconds if seconds is not None else None
        for _ in threads:
            begun.put(None)
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()) if deadline is not None else None)

    def run() -> None:
        while True:
            while len(running) < jobs + len(idle) and (action := scheduler.next()) is not None:
                running.add(action)
                begun.put(action)
                if len(threads) < len(running):
                    threads.append(threading.Thread(target=work, name=f"action-{len(threads)}", daemon=True))
                    threads[-1].start()
            if not running:
                return
            try:
                end = ended.get(timeout=poll_seconds)
            except queue.Empty:
                continue
            if end is None:
                continue  # a slot became free
            action, error = end
            running.remove(action)
            if error is None:
                scheduler.finish(action)
            elif isinstance(error, EpbuildError):
                followers = scheduler.fail(action)
                goes_on = executor.fail(action, error) or keep_going
                for follower in followers + ([] if goes_on else scheduler.abandon()):
                    executor.skip(follower)
            else:
                raise error

    try:
        run()  # not inlined: Python 3.11 does not catch an interrupt here that it raises at a `continue` of the loop
    except BaseException:
        cancelled.set()
        stop(_STOP_SECONDS)
        raise
    stop()

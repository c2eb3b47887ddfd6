"""In which order actions run: a state machine with one transition function, and a loop that keeps the workers busy.

An action waits until everything that it needs is done. The ready action with the highest cost goes first, since a long one that is started
last is what a parallel build waits for; among equals, the order in which they were given. One whose memory does not fit beside what runs
lets smaller ones pass, but not for long; one that fits nowhere runs alone.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from enum import Enum

from epbuild.core.errors import EpbuildError

_PATIENCE = 4  # how many actions may pass one that waits for memory
_STOP_SECONDS = 1.5  # how long what runs may take to end when the build is being stopped
_POLL_SECONDS = 0.2  # how long an interrupt may go unnoticed on platforms where waiting holds signals back


class State(Enum):
    """Where an action is in its life. The first two lead on, the last three are ends."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


_TRANSITIONS = {
    State.WAITING: {State.READY, State.SKIPPED},
    State.READY: {State.RUNNING, State.SKIPPED},
    State.RUNNING: {State.DONE, State.FAILED, State.SKIPPED},
}


class Scheduler:
    """The states of a set of actions; `needs` gives for each action those that must be done before it.

    `memory` gives the bytes that an action takes while it runs (default: none), `budget` the bytes that there are for all (None: enough).
    """

    def __init__(
        self,
        needs: Mapping[str, Collection[str]],
        cost: Mapping[str, float],
        memory: Mapping[str, int] | None = None,
        budget: int | None = None,
    ) -> None:
        self.states = dict.fromkeys(needs, State.WAITING)
        # What is not in this build is there already.
        self._missing = {action: {need for need in before if need in needs} for action, before in needs.items()}
        self._cost = cost
        self._memory = memory or {}
        self._budget = budget
        self._taken: dict[str, int] = {}
        self._passed = 0
        self._place = {action: place for place, action in enumerate(needs)}
        self._ready: list[tuple[float, int, str]] = []
        self._followers: dict[str, list[str]] = {action: [] for action in needs}
        for action, before in self._missing.items():
            for need in before:
                self._followers[need].append(action)
        for action, before in self._missing.items():
            if not before:
                self._set(action, State.READY)

    def next(self) -> str | None:
        """The action to start now, which becomes RUNNING; None when nothing is ready, or nothing that is has room."""
        too_big: list[tuple[float, int, str]] = []
        found: str | None = None
        while self._ready and found is None and self._passed + len(too_big) <= _PATIENCE:
            entry = heapq.heappop(self._ready)
            if self.states[entry[2]] is not State.READY:
                continue  # it was abandoned
            if self._fits(entry[2]):
                found = entry[2]
            else:
                too_big.append(entry)
        for entry in too_big:
            heapq.heappush(self._ready, entry)
        if found is not None:
            self._passed = self._passed + 1 if too_big else 0
            self._set(found, State.RUNNING)
        return found

    def _fits(self, action: str) -> bool:
        wanted = self._memory.get(action, 0)
        return self._budget is None or not wanted or not self._taken or sum(self._taken.values()) + wanted <= self._budget

    def finish(self, action: str) -> None:
        """A RUNNING action is done; what waited for it alone becomes READY."""
        self._set(action, State.DONE)
        for follower in self._followers[action]:
            self._missing[follower].discard(action)
            if not self._missing[follower] and self.states[follower] is State.WAITING:
                self._set(follower, State.READY)

    def fail(self, action: str) -> list[str]:
        """A RUNNING action failed; everything that needs it is SKIPPED and returned."""
        self._set(action, State.FAILED)
        skipped: list[str] = []
        waiting = list(self._followers[action])
        while waiting:
            follower = waiting.pop()
            if self.states[follower] is State.WAITING:
                self._set(follower, State.SKIPPED)
                skipped.append(follower)
                waiting += self._followers[follower]
        return skipped

    def abandon(self) -> list[str]:
        """Skip everything that has not started; returns it."""
        left = [action for action, state in self.states.items() if state in (State.WAITING, State.READY)]
        for action in left:
            self._set(action, State.SKIPPED)
        return left

    def _set(self, action: str, state: State) -> None:
        before = self.states[action]
        if state not in _TRANSITIONS.get(before, ()):
            raise ValueError(f"{action} cannot go from {before.value} to {state.value}")
        self.states[action] = state
        if state is State.RUNNING:
            self._taken[action] = self._memory.get(action, 0)
        else:
            self._taken.pop(action, None)
        if state is State.READY:
            heapq.heappush(self._ready, (-self._cost.get(action, 0.0), self._place[action], action))


class Idle:
    """Those of the running actions that need no place at the moment: they wait, or only read and write files. For any thread."""

    def __init__(self) -> None:
        self._actions: set[str] = set()
        self.changed: Callable[[], None] = lambda: None
        """Called when there is one more of them."""

    def __len__(self) -> int:
        return len(self._actions)

    def add(self, action: str) -> None:
        """The action gives up its place."""
        self._actions.add(action)
        self.changed()

    def discard(self, action: str) -> None:
        """The action goes on, or has ended. Whoever has got its place keeps that."""
        self._actions.discard(action)


def drive(
    scheduler: Scheduler,
    perform: Callable[[str], None],
    *,
    jobs: int,
    keep_going: bool,
    cancelled: threading.Event,
    failed: Callable[[str, EpbuildError], bool],
    skipped: Callable[[str], None],
    idle: Idle | None = None,
) -> None:
    """Run every action through `perform`, at most `jobs` at once, until all have ended.

    Others may run in the place of those that are `idle`. An EpbuildError fails the action and is given to `failed`, which says
    whether that is allowed; what depends on it goes to `skipped`. Unless `keep_going`, the first failure that is not allowed also skips
    what has not started. Anything else that is raised, here or by a
    callback, and Ctrl-C, sets `cancelled`, waits for what runs, and goes up.
    """
    running: dict[str, threading.Thread] = {}
    try:
        _work_off(scheduler, perform, running, jobs, Idle() if idle is None else idle, keep_going, failed, skipped)
    except BaseException:
        cancelled.set()
        # Each ends within moments, but for one that reads or writes a large file: that one ends with the process.
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in running.values():
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        raise


def _work_off(
    scheduler: Scheduler,
    perform: Callable[[str], None],
    running: dict[str, threading.Thread],
    jobs: int,
    idle: Idle,
    keep_going: bool,
    failed: Callable[[str, EpbuildError], bool],
    skipped: Callable[[str], None],
) -> None:
    """What `drive` does as long as nothing is wrong but actions; `running` has the thread of each action that has begun and not ended."""
    ended: queue.SimpleQueue[tuple[str, BaseException | None] | None] = queue.SimpleQueue()
    idle.changed = lambda: ended.put(None)

    def work(action: str) -> None:
        try:
            perform(action)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop below has to know
            ended.put((action, error))
        else:
            ended.put((action, None))

    while True:
        while len(running) < jobs + len(idle) and (action := scheduler.next()) is not None:
            running[action] = threading.Thread(target=work, args=(action,), name=action, daemon=True)
            running[action].start()
        if not running:
            return
        try:
            end = ended.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            continue
        if end is None:
            continue  # there is one more place
        action, error = end
        running.pop(action).join()
        if error is None:
            scheduler.finish(action)
        elif isinstance(error, EpbuildError):
            followers = scheduler.fail(action)
            goes_on = failed(action, error) or keep_going
            for follower in followers + ([] if goes_on else scheduler.abandon()):
                skipped(follower)
        else:
            scheduler.fail(action)
            raise error

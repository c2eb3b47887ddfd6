"""Scheduler of actions: a state machine with one transition function.

An action waits until everything that it needs is done. The ready action with the highest cost starts first: a parallel build would wait
for a long action that starts last. Actions of equal cost keep the order in which they were given. An action whose memory does not fit
beside the running ones lets a few smaller ones pass. An action that exceeds all memory runs alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from enum import Enum

from msgspec import Struct

_MAX_PASSED = 4  # actions that may start before one that waits for memory


class Cost(Struct, frozen=True):
    """Expected seconds of an action: `measured`, or a guess that can only order the work."""

    seconds: float
    measured: bool


class Runnable(Struct, frozen=True):
    """Action to execute. Its key may depend on the results of the actions that it `needs`: the executor computes it."""

    id: str
    needs: Collection[str] = ()
    """Ids of the actions to finish first. One that is not part of the build is finished already."""
    cost: Cost = Cost(0.0, measured=False)
    memory: int = 0
    """Bytes of memory that it uses while it runs."""


class State(Enum):
    """State of an action. The last three are final."""

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
    """States of a set of actions. `budget` is the bytes of memory for all of them (None: unlimited)."""

    def __init__(self, actions: Iterable[Runnable], budget: int | None = None) -> None:
        self._actions = {action.id: action for action in actions}
        self.states = dict.fromkeys(self._actions, State.WAITING)
        # Needed actions that are not part of this build are finished already.
        self._missing = {action.id: {need for need in action.needs if need in self._actions} for action in self._actions.values()}
        self._budget = budget
        self._taken: dict[str, int] = {}
        self._passed = 0
        self._place = {action: place for place, action in enumerate(self._actions)}
        self._ready: list[tuple[float, int, str]] = []
        self._followers: dict[str, list[str]] = {action: [] for action in self._actions}
        for action, before in self._missing.items():
            for need in before:
                self._followers[need].append(action)
        for action, before in self._missing.items():
            if not before:
                self._set(action, State.READY)

    def next(self) -> str | None:
        """Return the action to start, which becomes RUNNING; None if no action is ready, or none fits into memory."""
        too_big: list[tuple[float, int, str]] = []
        found: str | None = None
        while self._ready and found is None and self._passed + len(too_big) <= _MAX_PASSED:
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
        wanted = self._actions[action].memory
        return self._budget is None or not wanted or not self._taken or sum(self._taken.values()) + wanted <= self._budget

    def finish(self, action: str) -> None:
        """Mark a RUNNING action as done. Actions that only waited for it become READY."""
        self._set(action, State.DONE)
        for follower in self._followers[action]:
            self._missing[follower].discard(action)
            if not self._missing[follower] and self.states[follower] is State.WAITING:
                self._set(follower, State.READY)

    def fail(self, action: str) -> list[str]:
        """Mark a RUNNING action as failed. Return the actions that need it, which become SKIPPED."""
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
        """Skip all actions that have not started, and return them."""
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
            self._taken[action] = self._actions[action].memory
        else:
            self._taken.pop(action, None)
        if state is State.READY:
            heapq.heappush(self._ready, (-self._actions[action].cost.seconds, self._place[action], action))

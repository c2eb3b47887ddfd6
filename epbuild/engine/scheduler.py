"""Scheduler of actions: a state machine with one transition function.

An action waits until all actions that it needs are done. The ready action with the highest cost starts first. If it started last,
a parallel build would wait for it at the end. Actions of equal cost start in their given order. If an action needs more memory
than running actions leave free, a few smaller actions may start before it. An action that needs more than the whole memory budget
runs alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from enum import Enum

from msgspec import Struct

_MAX_OVERTAKING = 4
"""Maximum number of smaller actions that may overtake an action that waits for memory."""


class Cost(Struct, frozen=True):
    """Expected seconds of an action. If `measured` is False, the seconds are a guess that is only good for ordering actions."""

    seconds: float
    measured: bool


class Runnable(Struct, frozen=True):
    """Action to schedule. It has no key, because the key may depend on results of the actions that it `needs`."""

    id: str
    needs: Collection[str] = ()
    """Ids of the actions that must finish first. An id that is not part of the build counts as finished."""
    cost: Cost = Cost(0.0, measured=False)
    memory: int = 0
    """Memory in bytes that the action uses while it runs."""


class State(Enum):
    """State of an action. DONE, FAILED and SKIPPED are final."""

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
    """Scheduler of a set of actions. `budget` is the memory in bytes for all running actions. None means unlimited."""

    def __init__(self, actions: Iterable[Runnable], budget: int | None = None) -> None:
        self._actions = {action.id: action for action in actions}
        self.states = dict.fromkeys(self._actions, State.WAITING)
        # Actions outside this build count as finished.
        self._unmet_needs = {
            action.id: {need for need in action.needs if need in self._actions} for action in self._actions.values()
        }
        self._budget = budget
        self._used_memory: dict[str, int] = {}
        """Memory in bytes of each running action."""
        self._overtaking = 0
        """Number of actions that started while the first action in the queue has waited for memory."""
        self._order = {action: index for index, action in enumerate(self._actions)}
        self._ready: list[tuple[float, int, str]] = []
        """Heap of ready actions, as negative cost, order and id. It may also contain abandoned actions."""
        self._dependents: dict[str, list[str]] = {action: [] for action in self._actions}
        for action, needs in self._unmet_needs.items():
            for need in needs:
                self._dependents[need].append(action)
        for action, needs in self._unmet_needs.items():
            if not needs:
                self._set(action, State.READY)

    def next(self) -> str | None:
        """Mark the next action as RUNNING and return it. Return None if no action is ready or none fits into memory."""
        too_big: list[tuple[float, int, str]] = []
        chosen: str | None = None
        while self._ready and chosen is None and self._overtaking + len(too_big) <= _MAX_OVERTAKING:
            entry = heapq.heappop(self._ready)
            _, _, action = entry
            if self.states[action] is not State.READY:
                continue  # it was abandoned
            if self._fits(action):
                chosen = action
            else:
                too_big.append(entry)
        for entry in too_big:
            heapq.heappush(self._ready, entry)
        if chosen is not None:
            self._overtaking = self._overtaking + 1 if too_big else 0
            self._set(chosen, State.RUNNING)
        return chosen

    def _fits(self, action: str) -> bool:
        memory = self._actions[action].memory
        if self._budget is None or not memory or not self._used_memory:
            return True
        return sum(self._used_memory.values()) + memory <= self._budget

    def finish(self, action: str) -> None:
        """Mark a RUNNING action as done. Actions that waited only for this action become READY."""
        self._set(action, State.DONE)
        for dependent in self._dependents[action]:
            self._unmet_needs[dependent].discard(action)
            if not self._unmet_needs[dependent] and self.states[dependent] is State.WAITING:
                self._set(dependent, State.READY)

    def fail(self, action: str) -> list[str]:
        """Mark a RUNNING action as failed. Mark the actions that depend on it as SKIPPED, and return them."""
        self._set(action, State.FAILED)
        skipped: list[str] = []
        unvisited = list(self._dependents[action])
        while unvisited:
            dependent = unvisited.pop()
            if self.states[dependent] is State.WAITING:
                self._set(dependent, State.SKIPPED)
                skipped.append(dependent)
                unvisited += self._dependents[dependent]
        return skipped

    def abandon(self) -> list[str]:
        """Skip all actions that have not started, and return them."""
        skipped = [action for action, state in self.states.items() if state in (State.WAITING, State.READY)]
        for action in skipped:
            self._set(action, State.SKIPPED)
        return skipped

    def _set(self, action: str, state: State) -> None:
        previous = self.states[action]
        if state not in _TRANSITIONS.get(previous, ()):
            raise ValueError(f"{action} cannot go from {previous.value} to {state.value}")
        self.states[action] = state
        if state is State.RUNNING:
            self._used_memory[action] = self._actions[action].memory
        else:
            self._used_memory.pop(action, None)
        if state is State.READY:
            heapq.heappush(self._ready, (-self._actions[action].cost.seconds, self._order[action], action))

"""Tally of a build: the number of finished steps, and an estimate for the rest.

The estimate assumes that all places stay busy: it is the sum of the remaining times divided by the places, but at least the remaining time
of the longest action. An action that was never measured counts with a guess from the size of its models. Guesses are scaled by the error of
the guesses so far in this build. Until the first guessed action has ended, there is no estimate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epbuild.engine.events import Completion
from epbuild.engine.scheduler import Cost

_MIN_GUESSED = 1e-6  # seconds: a quotient by less may be infinite


@dataclass
class _Kind:
    """Actions with measured, or with guessed, times that have not ended."""

    number: int
    seconds: float
    waiting: list[str]
    """Actions that have not begun, the longest last. An action that has begun is removed only once it is the last."""


class Tally:
    """Steps of a build's actions, and the number of ended ones. For any thread.

    `steps` has the steps of each out-of-date action, `costs` their costs. At most `jobs` actions run at once.
    """

    def __init__(
        self,
        steps: Mapping[str, Sequence[str]],
        costs: Mapping[str, Cost],
        jobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._costs = costs
        self._jobs = jobs
        self._clock = clock
        self._lock = threading.Lock()
        self._actions = {step: action for action, names in steps.items() for step in names}  # of the steps that have not ended
        self._total = len(self._actions)
        self._open = {action: len(names) for action, names in steps.items()}
        self._begun: dict[str, float] = {}
        self._guessed = self._took = 0.0  # of guessed actions that have ended
        self._kinds = {measured: self._kind(measured) for measured in (True, False)}

    def seconds_left(self) -> float | None:
        """Estimate the seconds for the rest. Return None until there is a measured time to estimate from."""
        with self._lock:
            return self._left()

    def begin(self, action: str) -> None:
        with self._lock:
            if self._open.get(action):
                self._begun[action] = self._clock()

    def end(self, step: str, *, compiled: bool) -> Completion | None:
        """Record that a step ended. Return the progress of the build, or None if the step was current.

        If it was `compiled` in this build, its time is used for the estimate.
        """
        with self._lock:
            action = self._actions.pop(step, None)
            if action is None:
                return None
            self._open[action] -= 1
            if not self._open[action]:
                self._close(action, compiled=compiled)
            return Completion(self._total - len(self._actions), self._total, self._left())

    def _kind(self, measured: bool) -> _Kind:
        names = [action for action in self._open if self._costs[action].measured is measured]
        names.sort(key=lambda action: self._costs[action].seconds)
        return _Kind(len(names), sum(self._costs[action].seconds for action in names), names)

    def _close(self, action: str, *, compiled: bool) -> None:
        cost = self._costs[action]
        kind = self._kinds[cost.measured]
        kind.number -= 1
        kind.seconds = kind.seconds - cost.seconds if kind.number else 0.0  # exactly 0: a sum of fractions may leave a remainder
        begun = self._begun.pop(action, None)
        if compiled and begun is not None and not cost.measured:
            self._guessed += cost.seconds
            self._took += self._clock() - begun

    def _left(self) -> float | None:
        scales = {True: 1.0, False: self._took / self._guessed if self._guessed > _MIN_GUESSED else 1.0}
        if self._kinds[False].number and self._guessed <= _MIN_GUESSED:
            return None
        now = self._clock()
        total = sum(kind.seconds * scales[measured] for measured, kind in self._kinds.items())
        longest = max(self._longest_waiting(kind) * scales[measured] for measured, kind in self._kinds.items())
        for action, begun in self._begun.items():
            cost = self._costs[action]
            expected = cost.seconds * scales[cost.measured]
            total -= min(now - begun, expected)
            longest = max(longest, expected - (now - begun))
        return max(total / self._jobs, longest, 0.0)

    def _longest_waiting(self, kind: _Kind) -> float:
        while kind.waiting and (kind.waiting[-1] in self._begun or not self._open[kind.waiting[-1]]):
            kind.waiting.pop()
        return self._costs[kind.waiting[-1]].seconds if kind.waiting else 0.0

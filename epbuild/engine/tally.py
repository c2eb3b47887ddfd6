"""Tally of a build: the number of finished steps, and an estimate for the rest.

The estimate assumes that all jobs stay busy. It is the sum of the remaining times divided by the number of jobs, but at least the
remaining time of the longest action. If an action was never measured, its time is guessed from the size of its models. Guesses
are scaled by the error of earlier guesses in this build. If there are guesses, the first estimate is available after the first
guessed action has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epbuild.engine.events import Completion
from epbuild.engine.scheduler import Cost

_MIN_GUESSED_SECONDS = 1e-6
"""Minimum sum of guesses to divide by. A smaller divisor could give an infinite quotient."""


@dataclass
class _Remaining:
    """Actions that have not ended and whose times are either all measured or all guessed."""

    count: int
    seconds: float
    waiting: list[str]
    """Actions in ascending order of seconds. An action that has begun stays in the list until it is the last item."""


class Tally:
    """Thread-safe counter of the steps that have ended in a build.

    `steps` has the steps of each out-of-date action, and `costs` has the cost of each action. At most `jobs` actions run at once.
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
        self._actions = {step: action for action, names in steps.items() for step in names}
        """Action of each step that has not ended."""
        self._total = len(self._actions)
        self._steps_left = {action: len(names) for action, names in steps.items()}
        self._start_times: dict[str, float] = {}
        self._guessed_seconds = 0.0
        self._actual_seconds = 0.0
        """Actual seconds of the guessed actions that have ended. `_guessed_seconds` is the sum of their guesses."""
        self._remaining = {measured: self._find_remaining(measured=measured) for measured in (True, False)}

    def seconds_left(self) -> float | None:
        """Estimate the seconds for the remaining steps. Return None if times are guessed and no guessed action has ended yet."""
        with self._lock:
            return self._estimate()

    def begin(self, action: str) -> None:
        with self._lock:
            if self._steps_left.get(action):
                self._start_times[action] = self._clock()

    def end(self, step: str, *, compiled: bool) -> Completion | None:
        """Record that a step ended. Return the progress of the build, or None if the step was current.

        If the step was `compiled` in this build, the time of its action improves the estimate.
        """
        with self._lock:
            action = self._actions.pop(step, None)
            if action is None:
                return None
            self._steps_left[action] -= 1
            if not self._steps_left[action]:
                self._end_action(action, compiled=compiled)
            return Completion(self._total - len(self._actions), self._total, self._estimate())

    def _find_remaining(self, *, measured: bool) -> _Remaining:
        actions = [action for action in self._steps_left if self._costs[action].measured is measured]
        actions.sort(key=lambda action: self._costs[action].seconds)
        return _Remaining(len(actions), sum(self._costs[action].seconds for action in actions), actions)

    def _end_action(self, action: str, *, compiled: bool) -> None:
        cost = self._costs[action]
        remaining = self._remaining[cost.measured]
        remaining.count -= 1
        # The last value is set to 0, because a difference of fractions may leave a remainder.
        remaining.seconds = remaining.seconds - cost.seconds if remaining.count else 0.0
        start = self._start_times.pop(action, None)
        if compiled and start is not None and not cost.measured:
            self._guessed_seconds += cost.seconds
            self._actual_seconds += self._clock() - start

    def _estimate(self) -> float | None:
        can_scale = self._guessed_seconds > _MIN_GUESSED_SECONDS
        if self._remaining[False].count and not can_scale:
            return None
        scales = {True: 1.0, False: self._actual_seconds / self._guessed_seconds if can_scale else 1.0}
        now = self._clock()
        total = sum(remaining.seconds * scales[measured] for measured, remaining in self._remaining.items())
        longest = max(self._find_longest_waiting(remaining) * scales[measured] for measured, remaining in self._remaining.items())
        for action, start in self._start_times.items():
            cost = self._costs[action]
            expected = cost.seconds * scales[cost.measured]
            total -= min(now - start, expected)
            longest = max(longest, expected - (now - start))
        return max(total / self._jobs, longest, 0.0)

    def _find_longest_waiting(self, remaining: _Remaining) -> float:
        """Return the unscaled seconds of the longest action that has not begun."""
        waiting = remaining.waiting
        while waiting and (waiting[-1] in self._start_times or not self._steps_left[waiting[-1]]):
            waiting.pop()
        return self._costs[waiting[-1]].seconds if waiting else 0.0

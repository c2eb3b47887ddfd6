"""Retry policy and circuit breaker for transfers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from epbuild.core.errors import Cancelled
from epbuild.transfer.objects import TransferError

T = TypeVar("T")

_MAX_FAILURES = 3
_MAX_LOST_SECONDS = 4.0


class RetryPolicy(Struct, frozen=True):
    """Policy for retries, with the pause before each retry in seconds."""

    pauses: tuple[float, ...] = (0.5, 2.0, 5.0)
    max_pause: float = 30.0
    """Maximum pause that a server may request."""
    retries_timeouts: bool = True

    def call(self, work: Callable[[], T], wait: Callable[[float], None], has_progressed: Callable[[], bool] = lambda: False) -> T:
        """Call `work`, retry it after temporary failures, and return its result.

        After an attempt that made progress, the pauses start over with the shortest.

        Raises the TransferError of the last attempt, and errors of `wait`.
        """
        pauses = iter(self.pauses)
        while True:
            try:
                return work()
            except TransferError as error:
                if has_progressed():
                    pauses = iter(self.pauses)
                retries = error.may_pass and (self.retries_timeouts or error.kind != "timeout")
                pause = next(pauses, None) if retries else None
                if pause is None:
                    raise
                wait(max(pause, min(error.pause, self.max_pause)))


def wait_for_retry(cancelled: threading.Event, seconds: float) -> None:
    """Wait before a retry. Raises Cancelled if `cancelled` is set meanwhile."""
    if cancelled.wait(seconds):
        raise Cancelled


class CircuitOpenError(Exception):
    """Request that was not sent because the circuit breaker is open."""


class CircuitBreaker:
    """Circuit breaker that stops requests to a failing server, so that the server delays a build by only a few seconds.

    It opens after a permanent failure, after several consecutive failures, or when failures have cost several seconds in
    total. `on_open` is called once, with the failure that opened the breaker.
    """

    def __init__(self, policy: RetryPolicy, wait: Callable[[float], None], on_open: Callable[[TransferError], None]) -> None:
        self._policy = policy
        self._wait = wait
        self._on_open = on_open
        self._lock = threading.Lock()
        self._failures = 0
        self._lost_seconds = 0.0
        self.is_open = False
        self.peer: CircuitBreaker | None = None
        """Circuit breaker for other requests to the same server. It is opened together with this one if the server hangs."""

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` with retries by the policy, and return its result. Raises TransferError, CircuitOpenError, and errors of `wait`."""

        def attempt() -> T:
            if self.is_open:
                raise CircuitOpenError
            return work()

        begin = time.monotonic()
        try:
            result = self._policy.call(attempt, self._wait)
        except TransferError as error:
            self._record_failure(error, time.monotonic() - begin)
            raise
        if self._failures:
            with self._lock:
                self._failures = 0
        return result

    def _record_failure(self, error: TransferError, seconds: float) -> None:
        with self._lock:
            self._failures += 1
            self._lost_seconds += seconds
            is_permanent = error.kind in ("timeout", "denied")
            if self.is_open or not (is_permanent or self._failures >= _MAX_FAILURES or self._lost_seconds >= _MAX_LOST_SECONDS):
                return
            self.is_open = True
        if error.kind == "timeout" and self.peer is not None:
            self.peer.is_open = True
        self._on_open(error)

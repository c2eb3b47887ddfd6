"""Attempts at a remote cache, and the circuit breakers that end them.

A server that does not answer, or only with errors, costs a build a few seconds once, and one warning for each side: reading and writing.
What answers is tried again; what hangs is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from epbuild.cache.leases import Cancelled
from epbuild.core.errors import HttpCancelled, Problem
from epbuild.remote.transport import RemoteError

T = TypeVar("T")

Warn = Callable[[Problem], None]
"""Takes what a user is to be warned of."""

PAUSES_SECONDS = (0.2, 1.0)
"""How long to wait before each new attempt, where the server does not ask for more."""

_LONGEST_PAUSE_SECONDS = 2.0  # whatever a server asks for
_MOST_FAILURES = 3
_MOST_LOST_SECONDS = 4.0
_SIDES = {"reading": "read", "writing": "written"}
_CONSEQUENCES = {
    "reading": "This build makes itself what it does not find here.",
    "writing": "What this build makes is not shared.",
}


class SwitchedOff(Exception):
    """The remote is not asked any more."""


class Breaker:
    """Whether one side of a remote is still used: not after one failure that will stay, or several in a row, or seconds lost to them."""

    def __init__(self, side: Literal["reading", "writing"], remote: str, warn: Warn) -> None:
        self._side = side
        self._remote = remote
        self._warn = warn
        self._lock = threading.Lock()
        self._failures = 0
        self._lost = 0.0
        self.is_open = False
        self.partner: Breaker | None = None
        """The other side's, which need not find out by itself that the server hangs."""

    def succeeded(self) -> None:
        """Take note of an answer, of whatever content."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self, error: RemoteError, seconds: float) -> None:
        """Take note of a failure after all attempts, which took some seconds."""
        with self._lock:
            self._failures += 1
            self._lost += seconds
            lasting = error.trouble in ("hung", "refused")
            if self.is_open or not (lasting or self._failures >= _MOST_FAILURES or self._lost >= _MOST_LOST_SECONDS):
                return
            self.is_open = True
        if error.trouble == "hung" and self.partner is not None:
            self.partner.is_open = True
        message = f"the remote cache {self._remote} cannot be {_SIDES[self._side]}: {error.reason}"
        self._warn(Problem("EPB521", message, hint=f"{_CONSEQUENCES[self._side]} {error.hint}"))


class Attempts:
    """What is asked of one side of a remote, again where that makes sense. `pause` waits that many seconds; it may raise Cancelled."""

    def __init__(self, breaker: Breaker, pause: Callable[[float], None]) -> None:
        self.breaker = breaker
        self._pause = pause

    def ask(self, work: Callable[[], T]) -> T:
        """What `work` returns. Raises RemoteError when it fails, SwitchedOff where nothing is asked any more, and Cancelled."""
        begin = time.monotonic()
        pauses = iter(PAUSES_SECONDS)
        while not self.breaker.is_open:
            try:
                found = work()
            except RemoteError as error:
                pause = next(pauses, None) if error.trouble == "passing" else None
                if pause is None:
                    self.breaker.failed(error, time.monotonic() - begin)
                    raise
                self._pause(max(pause, min(error.pause, _LONGEST_PAUSE_SECONDS)))
            except HttpCancelled as error:
                raise Cancelled(str(error)) from error
            else:
                self.breaker.succeeded()
                return found
        raise SwitchedOff

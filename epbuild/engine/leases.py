"""Leases of a build, so that each action runs in only one build at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from epbuild.cache.leases import lease
from epbuild.engine.events import Progress, StepOutput
from epbuild.engine.loop import IdleActions


class WaitLine(Struct, frozen=True):
    """Listener that reports a line of output when a step starts to wait for a lease."""

    step: str
    text: str
    progress: Progress
    yield_place: Callable[[], None] | None = None
    """Function that lets another action run in the slot of the waiting action."""

    def waiting(self) -> None:
        if self.yield_place is not None:
            self.yield_place()
        self.progress.report(StepOutput(self.step, self.text))


class Leases:
    """Thread-safe provider of leases for the actions of one build."""

    def __init__(self, progress: Progress, cancelled: threading.Event, idle: IdleActions) -> None:
        self._progress = progress
        self._cancelled = cancelled
        self._idle = idle

    @contextmanager
    def hold(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Hold the lease of an action, so that no other build runs it. While another build holds the lease, wait.

        Other actions of this build may run during the wait.
        """
        listener = WaitLine(
            step, "waiting for another build that runs this action", self._progress, partial(self._idle.add, action)
        )
        try:
            with lease(root, key, listener=listener, cancelled=self._cancelled):
                self._idle.discard(action)
                yield
        finally:
            self._idle.discard(action)

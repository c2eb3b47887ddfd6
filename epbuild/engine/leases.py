"""Leases of a build: an action runs in one build at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from epbuild.cache.leases import lease
from epbuild.engine.events import Progress, StepOutput
from epbuild.engine.loop import Idle


class WaitLine(Struct, frozen=True):
    """Line that a step reports while it waits for a lease."""

    step: str
    text: str
    progress: Progress
    yield_place: Callable[[], None] | None = None
    """Function that lets another action run in the place of the waiting one."""

    def waiting(self) -> None:
        if self.yield_place is not None:
            self.yield_place()
        self.progress.report(StepOutput(self.step, self.text))


class Leases:
    """Leases that the actions of one build hold. Any number of threads may use it."""

    def __init__(self, progress: Progress, cancelled: threading.Event, idle: Idle) -> None:
        self._progress = progress
        self._cancelled = cancelled
        self._idle = idle

    @contextmanager
    def hold(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Keep other builds from running the same action. While another build runs it, wait and let other actions of this build run."""
        listener = WaitLine(
            step, "waiting for another build that runs this action", self._progress, partial(self._idle.add, action)
        )
        try:
            with lease(root, key, listener=listener, cancelled=self._cancelled):
                self._idle.discard(action)
                yield
        finally:
            self._idle.discard(action)

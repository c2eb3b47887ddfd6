"""Leases of a build: an action runs in one build at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

    def waiting(self) -> None:
        self.progress.report(StepOutput(self.step, self.text))


class _GivesWay(WaitLine, frozen=True):
    """Line of a step whose action yields its place to another action while it waits."""

    action: str
    idle: Idle

    def waiting(self) -> None:
        self.idle.add(self.action)
        super().waiting()


class Leases:
    """Leases that the actions of one build hold. For any thread."""

    def __init__(self, progress: Progress, cancelled: threading.Event, idle: Idle) -> None:
        self._progress = progress
        self._cancelled = cancelled
        self._idle = idle

    @contextmanager
    def hold(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Keep other builds from running the same action. While another build runs it, wait and let other actions of this build run."""
        listener = _GivesWay(step, "another build is at it; waiting", self._progress, action, self._idle)
        try:
            with lease(root, key, listener=listener, cancelled=self._cancelled):
                self._idle.discard(action)
                yield
        finally:
            self._idle.discard(action)

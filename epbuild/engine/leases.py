"""Leases of a build: an action is at work in one build at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epbuild.cache.leases import lease
from epbuild.engine.events import Progress, StepOutput
from epbuild.engine.loop import Idle


class Leases:
    """The leases that the actions of one build hold. For any thread."""

    def __init__(self, progress: Progress, cancelled: threading.Event, idle: Idle) -> None:
        self._progress = progress
        self._cancelled = cancelled
        self._idle = idle

    @contextmanager
    def hold(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Keep other builds from doing the same; while one is at it, wait, and let other actions of this build go on."""

        def wait() -> None:
            self._idle.add(action)
            self._progress.report(StepOutput(step, "another build is at it; waiting"))

        try:
            with lease(root, key, waiting=wait, cancelled=self._cancelled):
                self._idle.discard(action)
                yield
        finally:
            self._idle.discard(action)

"""Leases of a build, so that each action runs in only one build at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from epbuild.cache.leases import lease
from epbuild.engine.events import Progress, StepOutput
from epbuild.engine.loop import IdleActions


class Leases(Struct, frozen=True):
    """Thread-safe provider of leases for the actions of one build."""

    progress: Progress
    cancelled: threading.Event
    idle: IdleActions

    @contextmanager
    def hold(self, action: str, step: str, root: Path, key: str) -> Iterator[None]:
        """Hold the lease of an action, so that no other build runs it. While another build holds the lease, wait.

        Other actions of this build may run during the wait.
        """

        def report_wait() -> None:
            self.idle.add(action)
            self.progress.report(StepOutput(step, "waiting for another build that runs this action"))

        try:
            with lease(root, key, on_wait=report_wait, cancelled=self.cancelled):
                self.idle.discard(action)
                yield
        finally:
            self.idle.discard(action)

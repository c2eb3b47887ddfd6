"""`PendingRequest`: a request that a thread waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from epbuild.cluster.executor import MOST_LOSSES, Placement, lost_action
from epbuild.cluster.reply import MachineReply
from epbuild.engine.events import Event, Progress, StepOutput


class PendingRequest:
    """What becomes of a request meanwhile, as it is reported by other threads; `step` is what it is reported for."""

    def __init__(self, step: str, placement: Placement, progress: Progress) -> None:
        self.placement = placement
        self.changed = threading.Event()
        """Set once there is a reply, or none is waited for any more."""
        self.reply: MachineReply | None = None
        self.error: Exception | None = None
        """Why none is waited for any more."""
        self.machines: dict[str, str] = {}
        """The machines that began to execute it, by address, in order."""
        self._step = step
        self._progress = progress

    def begin(self, machine: str, address: str) -> None:
        """Take note that a machine begins to execute it: the one before is gone then."""
        if address in self.machines:
            return
        previous = list(self.machines.values())
        self.machines[address] = machine
        if previous:
            self._progress.report(StepOutput(self._step, f"{previous[-1]} went away; {machine} takes over"))
        if len(previous) >= MOST_LOSSES:
            self.fail(lost_action(previous))

    def report(self, event: Event) -> None:
        """Pass on what the machine reports."""
        self._progress.report(event)

    def take(self, reply: Callable[[], MachineReply]) -> None:
        """Have it end with the reply that `reply` gives, or with what that raises, unless it has ended."""
        try:
            self.reply = reply()
            self.changed.set()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Have it end with an error, unless it has ended."""
        if not self.changed.is_set():
            self.error = error
            self.changed.set()

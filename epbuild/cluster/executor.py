"""`RequestExecutor`: executes requests somewhere, here or on other machines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from epbuild.cache.leases import Cancelled
from epbuild.cluster.machine import Machine
from epbuild.cluster.reply import MachineReply
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import EnvironmentFailure, Problem
from epbuild.core.units import counted
from epbuild.engine.events import Progress

NOBODY_SECONDS = 60.0
"""How long a build waits for a machine that offers what it needs."""


class Lost(EnvironmentFailure):
    """The machine that executed a request went away, or no machine can be asked any more."""


@dataclass(frozen=True)
class Offer:
    """What one machine offers to execute."""

    machine: str
    labels: frozenset[str]
    slots: int
    """How many actions it executes at once."""
    memory: int
    """The bytes that it has for all of them."""

    def serves(self, labels: frozenset[str]) -> bool:
        return labels <= self.labels


def nobody_offers(labels: frozenset[str], offers: Sequence[Offer], actions: int = 1) -> Lost:
    """That no machine offers what some `actions` need, with the one that lacks least, and those that are there."""
    best = max(offers, key=lambda offer: len(labels & offer.labels), default=None)
    lacking = sorted(labels - best.labels) if best is not None else sorted(labels)
    machines = ", ".join(sorted(offer.machine for offer in offers)) or "no machine is connected"
    message = f"no machine of the cluster offers {', '.join(lacking)} ({counted(actions, 'action')}); connected: {machines}"
    return Lost(Problem("EPB539", message, None, "Start a worker that does: `epbuild worker`."))


class RequestExecutor(Protocol):
    """Executes requests. Any number of threads may use one."""

    def offers(self) -> Sequence[Offer]:
        """The machines that can be asked now. Raises Lost."""

    def execute(self, request: ActionRequest, needs: Mapping[str, float], progress: Progress) -> MachineReply:
        """Have a request executed by a machine that offers what it `needs`, and wait for the reply.

        Raises Lost where the machine, or the scheduler that knows it, goes away, and Cancelled once the build is being stopped:
        it ends there too.
        """

    def close(self) -> None:
        """Let connections go."""


class LocalExecutor:
    """Executes requests on one `machine`, in this process, in the thread that asks."""

    def __init__(self, machine: Machine, offer: Offer, cancelled: threading.Event) -> None:
        self._machine = machine
        self._offer = offer
        self._cancelled = cancelled

    def offers(self) -> Sequence[Offer]:
        return (self._offer,)

    def execute(self, request: ActionRequest, needs: Mapping[str, float], progress: Progress) -> MachineReply:
        reply = self._machine.execute(request, progress, self._cancelled)
        if reply.outcome == "cancelled":
            raise Cancelled(request.key)
        return reply

    def close(self) -> None:
        """There is nothing to let go."""

"""`LocalExecutor`: a cluster of one machine, in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from epbuild.cluster.machine import Machine
from epbuild.cluster.placement import Offer, Placement
from epbuild.cluster.protocol import MachineReply, make_unoffered_error
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import Cancelled
from epbuild.engine.events import Progress


class LocalExecutor:
    """Executor that runs requests in the caller's thread, without Dask."""

    def __init__(self, machine: Machine, offer: Offer, cancelled: threading.Event) -> None:
        self._machine = machine
        self._offer = offer
        self._cancelled = cancelled

    def offers(self) -> Sequence[Offer]:
        return (self._offer,)

    def wait_for_offer(self, placement: Placement, actions: int) -> None:
        if not placement.allows(self._offer):
            raise make_unoffered_error(placement.labels, self.offers(), actions)

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        reply = self._machine.execute(request, progress, self._cancelled)
        if reply.outcome == "cancelled":
            raise Cancelled(request.key)
        return reply

    def close(self) -> None:
        """Do nothing, as this executor holds no resources."""

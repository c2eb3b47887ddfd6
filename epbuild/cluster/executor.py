"""`RequestExecutor`: executes requests on other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from epbuild.cluster.reply import MachineReply
from epbuild.cluster.request import ActionRequest
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem
from epbuild.core.units import counted
from epbuild.engine.events import Progress

MOST_LOSSES = 2
"""How many machines may go away while they execute a request: it is likely to be the reason, and no third is asked."""
_LOGS = "See the logs of the workers, and the system's for a lack of memory."


class Lost(EnvironmentFailure):
    """No machine can be asked any more: the scheduler is gone."""


class Unoffered(EnvironmentFailure):
    """No machine offers what an action needs; others are not concerned."""

    stops_others = False


class Offer(Struct, frozen=True):
    """What one machine offers to execute."""

    machine: str
    labels: frozenset[str]
    slots: int
    """How many actions it executes at once."""
    memory: int
    """The bytes that it has for all of them."""
    tried: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What came of probes there, `does` or `cannot`, and why, by label: one that is in `labels` and not here was not tried yet."""

    def serves(self, labels: frozenset[str]) -> bool:
        return labels <= self.labels


class Placement(Struct, frozen=True):
    """Which machines a request may go to."""

    labels: frozenset[str]
    """What they have to offer."""
    memory: int = 0
    """The bytes that they need to have left."""
    without: frozenset[str] = frozenset()
    """Those that are not asked, by name."""

    def allows(self, offer: Offer) -> bool:
        return offer.serves(self.labels) and offer.machine not in self.without


def nobody_offers(labels: frozenset[str], offers: Sequence[Offer], actions: int = 1) -> Unoffered:
    """That no machine offers what some `actions` need, with the one that lacks least, and those that are there."""
    best = max(offers, key=lambda offer: len(labels & offer.labels), default=None)
    lacking = sorted(labels - best.labels) if best is not None else sorted(labels)
    machines = ", ".join(sorted(offer.machine for offer in offers)) or "no machine is connected"
    what = f"{', '.join(lacking) or 'all that is needed at once'} ({counted(actions, 'action')})"
    message = f"no machine of the cluster offers {what}; connected: {machines}"
    return Unoffered(Problem("EPB539", message, None, "Start a worker that does: `epbuild worker`."))


def lost_action(machines: Sequence[str]) -> BuildError:
    """That the machines went away which executed an action: all of them, or as many as are known."""
    named = f": {', '.join(machines)}" if machines else ""
    message = f"lost: the machines that executed it went away, {MOST_LOSSES} of them{named}"
    return BuildError(Problem("EPB534", message, None, _LOGS))


class RequestExecutor(Protocol):
    """Executes requests. Any number of threads may use one."""

    def offers(self) -> Sequence[Offer]:
        """The machines that can be asked, as they were moments ago."""

    def wait_for_offer(self, placement: Placement, actions: int) -> None:
        """Wait for a machine that some `actions` may go to. Raises Unoffered after a minute, and Cancelled."""

    def execute(self, request: ActionRequest, placement: Placement, progress: Progress) -> MachineReply:
        """Have a request executed by a machine that it may go to, and wait for the reply.

        Raises BuildError (EPB534) where MOST_LOSSES machines went away while they did, Lost where the scheduler went away, Unoffered,
        and Cancelled once the build is being stopped: it ends there too.
        """

    def close(self) -> None:
        """Let connections go."""

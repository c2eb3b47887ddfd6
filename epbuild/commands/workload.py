"""What is missing of a recipe, as work for the machines of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from epbuild.cache.workspace import Workspace
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.dask_client import DaskExecutor
from epbuild.cluster.placement import EP_LABEL, PLATFORM_LABEL, REAL_LABEL, Offer, eps_of, labels_of
from epbuild.commands.jobs import locked_platforms
from epbuild.session.planning import workspace_of
from epbuild.session.request import Request
from epbuild.survey.costs import likely_seconds
from epbuild.survey.jobs import Runners, missing_actions
from epbuild.survey.status import Survey


class UnfitMachine(NamedTuple):
    """A machine that found out that it cannot do something, and why, as a clause."""

    machine: str
    why: str


class Workload(Struct, frozen=True):
    """The actions that need the same labels: how many, how long they take one after another, and the machines that serve them."""

    platform: str
    eps: tuple[str, ...]
    """None: preparations."""
    actions: int
    seconds: float
    machines: tuple[str, ...]
    slots: int
    """How many of them these machines execute at once."""
    real_device: bool = False
    """Whether they run what was compiled on a real device of these EPs."""
    untried: tuple[str, ...] = ()
    """The machines among them that have not found out yet whether they can."""
    others: tuple[UnfitMachine, ...] = ()
    """The machines that found out that they cannot."""

    @property
    def likely_seconds(self) -> float | None:
        """How long these machines take; None where there is none."""
        return self.seconds / min(self.slots, self.actions) if self.slots else None


def workloads(request: Request, found: Survey, address: ClusterAddress) -> tuple[Workload, ...]:
    """What is missing, by what it needs, the longest first. Raises EpbuildError where the scheduler cannot be reached."""
    executor = DaskExecutor(address, threading.Event())
    try:
        offers = executor.offers()
    finally:
        executor.close()
    return workloads_on(offers, request, found)


def workloads_on(offers: Sequence[Offer], request: Request, found: Survey) -> tuple[Workload, ...]:
    """The same for machines that are known."""
    missing, runners = missing_actions(found), Runners({}, locked_platforms(request))
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        seconds = likely_seconds(found, workspace, workspace.memory(found.configuration))
    groups: dict[frozenset[str], list[str]] = {}
    for ident, action in missing.items():
        groups.setdefault(labels_of(action, runners.platforms(action)[0]), []).append(ident)
    loads = []
    for labels, actions in groups.items():
        serving = [offer for offer in offers if offer.serves(labels)]
        tried = {label for label in labels if label.startswith((EP_LABEL, REAL_LABEL))}
        loads.append(
            Workload(
                next(label.removeprefix(PLATFORM_LABEL) for label in labels if label.startswith(PLATFORM_LABEL)),
                eps_of(labels),
                len(actions),
                sum(seconds[ident] for ident in actions),
                tuple(sorted(offer.machine for offer in serving)),
                sum(offer.slots for offer in serving),
                any(label.startswith(REAL_LABEL) for label in labels),
                tuple(sorted(offer.machine for offer in serving if not tried <= offer.tried.keys())),
                tuple(sorted(_unfit(tried, offers))),
            )
        )
    return tuple(sorted(loads, key=lambda load: -load.seconds))


def _unfit(labels: Collection[str], offers: Sequence[Offer]) -> Iterator[UnfitMachine]:
    for offer in offers:
        probes = (offer.tried[label] for label in sorted(labels) if label in offer.tried)
        why = next((why for outcome, why in probes if outcome == "cannot"), None)
        if why is not None:
            yield UnfitMachine(offer.machine, why)

"""Placement of actions: offers of machines, needs of actions, and timeouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field

from epbuild import __version__
from epbuild.plan.ability import Ability, list_abilities
from epbuild.plan.request import CONTRACT
from epbuild.plan.steps import Action
from epbuild.toolchain.platforms import get_own_platform

MEMORY = "memory"
"""The only label with an amount, in bytes. A machine has all other labels or lacks them."""
RELEASE_LABEL = "epbuild:"
RELEASE = f"{RELEASE_LABEL}{__version__}/{CONTRACT}"
"""Machines with another release get no actions: their results may differ."""
PLATFORM_LABEL = "platform:"
EP_LABEL = "ep:"
"""Ability to compile with an EP, for one of its devices if one is named."""
REAL_LABEL = "real:"
"""Ability to run what an EP compiled on a real device."""
PREPARES = "prepare"
"""Ability to prepare models."""
_DEVICE = "@"
PLENTY = 1e9
"""Amount of each label that a machine offers."""


def list_needed_labels(action: Action, platform: str) -> frozenset[str]:
    """Return what an action needs to be executed on a `platform`, as the lock names platforms."""
    abilities = tuple(map(label_of_ability, list_abilities(action))) or (PREPARES,)
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform}", *abilities})


def label_of_ability(ability: Ability) -> str:
    """Return the label of an ability. Each packaging of an EP has its own."""
    packaging = "" if ability.entry.default else f"/{ability.entry.distribution}"
    device = f"{_DEVICE}{ability.device}" if ability.device else ""
    return f"{REAL_LABEL if ability.runs else EP_LABEL}{ability.entry.ep}{packaging}{device}"


def list_own_labels(abilities: Iterable[Ability], only: Collection[str] = ()) -> frozenset[str]:
    """Return the labels of this machine's `abilities`; if `only` names EPs or preparations, of these."""
    chosen = [ability for ability in abilities if not only or ability.entry.ep in only]
    more = (PREPARES,) if not only or PREPARES in only else ()
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{get_own_platform()}", *more, *map(label_of_ability, chosen)})


def parse_eps(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the EPs of the labels, each with its device if it is named; sorted."""
    kinds = (EP_LABEL, REAL_LABEL)
    return tuple(sorted({label.partition(":")[2] for label in labels if label.startswith(kinds)}))


def _resources(labels: Iterable[str], memory: float, amount: float) -> Mapping[str, float]:
    """Return labels as Dask's resources, `amount` of each."""
    return {**dict.fromkeys(labels, amount), MEMORY: memory}


def build_offered_resources(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """Return what a worker announces."""
    return _resources(labels, float(memory), PLENTY)


def build_required_resources(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """Return what a request needs."""
    return _resources(labels, float(memory), 1.0)


class Offer(Struct, frozen=True):
    """Offer of one machine to execute actions."""

    machine: str
    labels: frozenset[str]
    slots: int
    """Number of concurrent actions."""
    memory: int
    """Bytes for all of them."""
    tried: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Results of probes by label: `does` or `cannot`, and why. Labels without an entry were not tried yet."""

    def serves(self, labels: frozenset[str]) -> bool:
        """Return whether the machine offers all `labels`."""
        return labels <= self.labels


class Placement(Struct, frozen=True):
    """Requirements for the machine that executes a request."""

    labels: frozenset[str]
    """Labels that it must offer."""
    memory: int = 0
    """Bytes that it must have free."""
    without: frozenset[str] = frozenset()
    """Names of excluded machines."""

    def allows(self, offer: Offer) -> bool:
        """Return whether the machine of an offer may execute the request."""
        return offer.serves(self.labels) and offer.machine not in self.without


FROZEN_SECONDS = 30.0
"""Time without a heartbeat after which a machine counts as gone. Dask's schedulers wait five minutes by default."""

OFFER_SECONDS = 60.0
"""Time that a build waits for a machine that offers what it needs."""

Clock = Callable[[], float]


class Heartbeats:
    """Heartbeats of machines. Times of the scheduler are only compared with each other: its clock differs."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}
        """By address: the last heartbeat by the scheduler's clock, and when it was first seen by this clock."""

    def find_stale(self, last: Mapping[str, float]) -> list[str]:
        """Return the addresses without a heartbeat for too long, each once in that time. `last` has the last heartbeats."""
        now, before = self._clock(), self._seen
        self._seen = {
            address: before[address] if address in before and before[address][0] == beat else (beat, now)
            for address, beat in last.items()
        }
        stale = [address for address, (_, new) in self._seen.items() if now - new >= FROZEN_SECONDS]
        self._seen.update((address, (last[address], now)) for address in stale)
        return stale


class OfferTimeout:
    """Timeout for machines that offer what requests need. Thread-safe."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Placement, float] = {}

    def has_expired(self, placement: Placement, offers: Iterable[Offer]) -> bool:
        """Return whether no offer has fitted for a minute. Call it repeatedly."""
        if any(map(placement.allows, offers)):
            self._since.pop(placement, None)
            return False
        now = self._clock()
        return now - self._since.setdefault(placement, now) >= OFFER_SECONDS

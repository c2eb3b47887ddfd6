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
"""Label for memory in bytes. It is the only label with an amount. Other labels are either offered or not."""
RELEASE_LABEL = "epbuild:"
RELEASE = f"{RELEASE_LABEL}{__version__}/{CONTRACT}"
"""Label of epbuild's release. Machines with another release get no actions, as their results may differ."""
PLATFORM_LABEL = "platform:"
EP_LABEL = "ep:"
"""Prefix of labels for the ability to compile with an EP. A label may also name a device."""
REAL_LABEL = "real:"
"""Prefix of labels for the ability to run compiled models of an EP on a real device."""
PREPARES = "prepare"
"""Label for the ability to prepare models."""
_DEVICE = "@"
PLENTY = 1e9
"""Amount of each label that a machine offers: practically unlimited."""


def list_needed_labels(action: Action, platform: str) -> frozenset[str]:
    """Return the labels that a machine must offer to execute an action. `platform` is named as in the lock."""
    abilities = tuple(map(build_label, list_abilities(action))) or (PREPARES,)
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform}", *abilities})


def build_label(ability: Ability) -> str:
    """Return the label of an ability. Each packaging of an EP has a separate label."""
    packaging = "" if ability.entry.default else f"/{ability.entry.distribution}"
    device = f"{_DEVICE}{ability.device}" if ability.device else ""
    return f"{REAL_LABEL if ability.runs else EP_LABEL}{ability.entry.ep}{packaging}{device}"


def list_own_labels(abilities: Iterable[Ability], only: Collection[str] = ()) -> frozenset[str]:
    """Return the labels of this machine's `abilities`, restricted to the EPs or preparations in `only` if it is not empty."""
    chosen = [ability for ability in abilities if not only or ability.entry.ep in only]
    more = (PREPARES,) if not only or PREPARES in only else ()
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{get_own_platform()}", *more, *map(build_label, chosen)})


def parse_eps(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted EPs that labels name. An EP is followed by its device if the label names one."""
    kinds = (EP_LABEL, REAL_LABEL)
    return tuple(sorted({label.partition(":")[2] for label in labels if label.startswith(kinds)}))


class Offer(Struct, frozen=True):
    """Offer of a machine to execute actions."""

    machine: str
    labels: frozenset[str]
    slots: int
    """Maximum number of concurrent actions."""
    memory: int
    """Memory for all concurrent actions, in bytes."""
    tried: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Result of the probe of each label: `does` or `cannot`, and the reason. Labels without an entry have not been tried yet."""

    def serves(self, labels: frozenset[str]) -> bool:
        """Return whether the machine offers all `labels`."""
        return labels <= self.labels


class Placement(Struct, frozen=True):
    """Requirements for the machine that executes a request."""

    labels: frozenset[str]
    """Labels that the machine must offer."""
    memory: int = 0
    """Memory that the machine must have free, in bytes."""
    without: frozenset[str] = frozenset()
    """Names of excluded machines."""

    def allows(self, offer: Offer) -> bool:
        """Return whether the machine of an offer may execute the request."""
        return offer.serves(self.labels) and offer.machine not in self.without


FROZEN_SECONDS = 30.0
"""Number of seconds without a heartbeat after which a machine counts as gone. Dask's schedulers wait five minutes by default."""

OFFER_SECONDS = 60.0
"""Number of seconds that a build waits for a machine that meets an action's needs."""

Clock = Callable[[], float]


class Heartbeats:
    """Heartbeats of machines.

    The scheduler's times are only compared with each other, as its clock may differ from this machine's clock.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}
        """Time of the last heartbeat by the scheduler's clock, and time when this machine first saw it, by address."""

    def find_stale(self, last: Mapping[str, float]) -> list[str]:
        """Return the addresses of machines whose last heartbeat is too old. `last` has the time of each machine's last heartbeat.

        An address is returned at most once per FROZEN_SECONDS.
        """
        now, before = self._clock(), self._seen
        self._seen = {
            address: before[address] if address in before and before[address][0] == beat else (beat, now)
            for address, beat in last.items()
        }
        stale = [address for address, (_, new) in self._seen.items() if now - new >= FROZEN_SECONDS]
        self._seen.update((address, (last[address], now)) for address in stale)
        return stale


class OfferTimeout:
    """Timeout for placements that allow no connected machine. Thread-safe."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Placement, float] = {}

    def has_expired(self, placement: Placement, offers: Iterable[Offer]) -> bool:
        """Return whether the placement has not allowed any offer for a minute. Callers must call this method repeatedly."""
        if any(map(placement.allows, offers)):
            self._since.pop(placement, None)
            return False
        now = self._clock()
        return now - self._since.setdefault(placement, now) >= OFFER_SECONDS

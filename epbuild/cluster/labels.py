"""Labels: what machines offer and actions need, as Dask's resources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from epbuild import __version__
from epbuild.plan.ability import Ability, abilities_of
from epbuild.plan.request import CONTRACT
from epbuild.plan.steps import Action
from epbuild.toolchain.platforms import platform_here

MEMORY = "memory"
"""The one label of which there is so much, in bytes: all others are there or not."""
RELEASE_LABEL = "epbuild:"
RELEASE = f"{RELEASE_LABEL}{__version__}/{CONTRACT}"
"""A machine with another release is given nothing: what it makes may be another."""
PLATFORM_LABEL = "platform:"
EP_LABEL = "ep:"
"""To compile with an EP, for a device of its if one is named."""
REAL_LABEL = "real:"
"""To run what was compiled with an EP on a real device."""
PREPARES = "prepare"
"""To prepare models."""
_DEVICE = "@"
PLENTY = 1e9
"""How much of a label a machine has that offers it."""


def labels_of(action: Action, platform: str) -> frozenset[str]:
    """What an action needs to be executed on a `platform`, as the lock names platforms."""
    needed = tuple(map(label_of_ability, abilities_of(action))) or (PREPARES,)
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform}", *needed})


def label_of_ability(ability: Ability) -> str:
    """The label of what a machine can do with an EP, which another packaging has another one of."""
    packaging = "" if ability.entry.default else f"/{ability.entry.distribution}"
    device = f"{_DEVICE}{ability.device}" if ability.device else ""
    return f"{REAL_LABEL if ability.runs else EP_LABEL}{ability.entry.ep}{packaging}{device}"


def labels_here(abilities: Iterable[Ability], only: Collection[str] = ()) -> frozenset[str]:
    """What this machine offers of its `abilities`; `only` those of some EPs, or preparations, if any are named."""
    chosen = [ability for ability in abilities if not only or ability.entry.ep in only]
    more = (PREPARES,) if not only or PREPARES in only else ()
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform_here()}", *more, *map(label_of_ability, chosen)})


def eps_of(labels: Iterable[str]) -> tuple[str, ...]:
    """The EPs that labels are about, each with its device where they name one; sorted."""
    kinds = (EP_LABEL, REAL_LABEL)
    return tuple(sorted({label.partition(":")[2] for label in labels if label.startswith(kinds)}))


def resources(labels: Iterable[str], memory: float, amount: float) -> Mapping[str, float]:
    """Labels as Dask's resources, each `amount` times."""
    return {**dict.fromkeys(labels, amount), MEMORY: memory}


def offered(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """What a worker announces."""
    return resources(labels, float(memory), PLENTY)


def needed(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """What a request asks for."""
    return resources(labels, float(memory), 1.0)

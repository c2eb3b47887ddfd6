"""Labels: what machines offer and actions need, as Dask's resources."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping

from epbuild import __version__
from epbuild.catalog.catalog import CPU_EP, entries_for, known_eps
from epbuild.plan.request import CONTRACT
from epbuild.plan.steps import Action, InTarget
from epbuild.toolchain.platforms import platform_here

MEMORY = "memory"
"""The one label of which there is so much, in bytes: all others are there or not."""
RELEASE_LABEL = "epbuild:"
RELEASE = f"{RELEASE_LABEL}{__version__}/{CONTRACT}"
"""A machine with another release is given nothing: what it makes may be another."""
PLATFORM_LABEL = "platform:"
EP_LABEL = "ep:"
_PLENTY = 1e9
_PREPARES = "prepare"


def labels_of(action: Action, platform: str) -> frozenset[str]:
    """What an action needs to be executed on a `platform`, as the lock names platforms."""
    eps = {_PREPARES}
    if isinstance(action, InTarget):
        eps = {_ep_label(ep.entry.ep) for ep in action.target.eps if ep.entry.ep != CPU_EP}
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform}", *eps})


def labels_here(only: Collection[str] = ()) -> frozenset[str]:
    """What this machine offers: the EPs that can compile on it, as far as the catalog knows; `only` some of them, if any are named."""
    eps = [ep for ep in known_eps() if ep != CPU_EP and (not only or ep in only) and _can_compile(ep)]
    more = () if only else (_PREPARES,)
    return frozenset({RELEASE, f"{PLATFORM_LABEL}{platform_here()}", *more, *map(_ep_label, eps)})


def resources(labels: Iterable[str], memory: float, amount: float) -> Mapping[str, float]:
    """Labels as Dask's resources, each `amount` times."""
    return {**dict.fromkeys(labels, amount), MEMORY: memory}


def offered(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """What a worker announces."""
    return resources(labels, float(memory), _PLENTY)


def needed(labels: Iterable[str], memory: int) -> Mapping[str, float]:
    """What a request asks for."""
    return resources(labels, float(memory), 1.0)


def _ep_label(name: str) -> str:
    return f"{EP_LABEL}{name}"


def _can_compile(ep: str) -> bool:
    """Whether some packaging of an EP can compile something on this platform."""
    return any(
        entry.sources and not any(row.stops and not row.when and row.holds(sys.platform, row.device, {}) for row in entry.cannot)
        for entry in entries_for(ep)
    )

"""Abilities: what an action needs a machine to do with an EP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.plan.steps import Action, InTarget
from epbuild.plan.target import PlannedEp
from epbuild.plan.verification import Verification

VIRTUAL = "virtual-"
"""What a device's word begins with where it is a virtual one."""
_TYPES = re.compile("cpu|gpu|npu")


class Ability(Struct, frozen=True):
    """To compile for a device of an EP; or, if it `runs`, to run what was compiled on a real one."""

    entry: EpEntry
    device: str = ""
    """A type, for a virtual device with `virtual-` before it; empty: the one that the EP takes where none is named."""
    runs: bool = False

    @property
    def is_virtual(self) -> bool:
        return self.device.startswith(VIRTUAL)

    @property
    def device_type(self) -> str:
        return self.device.removeprefix(VIRTUAL)


def abilities_of(action: Action) -> tuple[Ability, ...]:
    """What a machine has to do with the EPs that compile for the target of an action; nothing, for one that has no target."""
    if isinstance(action, Verification):
        return _abilities(action, runs=action.is_on_real_device)
    return _abilities(action, runs=False) if isinstance(action, InTarget) else ()


def _abilities(action: InTarget, *, runs: bool) -> tuple[Ability, ...]:
    return tuple(Ability(ep.entry, device, runs) for ep in action.target.compiling for device in _devices(ep, runs=runs))


def _devices(ep: PlannedEp, *, runs: bool) -> Iterator[str]:
    """The devices that a target names: of an EP that is built in, by the option that names them."""
    named = str(ep.provider_options.get(ep.entry.device_option or "", "")).lower()
    types = list(dict.fromkeys(_TYPES.findall(named)))
    chosen = ep.device.type or (ep.entry.virtual_devices[0] if ep.device.virtual and ep.entry.virtual_devices else None)
    if chosen is not None and not types:
        types = [f"{VIRTUAL if ep.device.virtual and not runs else ''}{chosen}"]
    yield from types or [""]

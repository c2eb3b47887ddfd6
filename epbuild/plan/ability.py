"""Abilities that an action requires of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.steps import Action, InTarget
from epbuild.plan.target import PlannedEp
from epbuild.plan.verification import Verification

VIRTUAL = "virtual-"
"""Prefix of the device type of a virtual device."""
_TYPES = re.compile("cpu|gpu|npu")


class Ability(Struct, frozen=True):
    """Ability to compile with an EP for a device. If `runs` is true, the EP must also run compiled models on a real device."""

    entry: EpEntry
    device: str = ""
    """Device type, with the prefix `virtual-` for a virtual device. Empty for the EP's default device."""
    runs: bool = False

    @property
    def is_virtual(self) -> bool:
        return self.device.startswith(VIRTUAL)

    @property
    def device_type(self) -> str:
        return self.device.removeprefix(VIRTUAL)


def list_abilities(action: Action) -> tuple[Ability, ...]:
    """Return the abilities that an action needs: one for each device of each compiling EP, or none if the action has no target."""
    if isinstance(action, Verification | ModelMeasurement):
        return _list_abilities(action, runs=action.is_on_real_device)
    return _list_abilities(action, runs=False) if isinstance(action, InTarget) else ()


def _list_abilities(action: InTarget, *, runs: bool) -> tuple[Ability, ...]:
    return tuple(Ability(ep.entry, device, runs) for ep in action.target.compiling for device in _list_devices(ep, runs=runs))


def _list_devices(ep: PlannedEp, *, runs: bool) -> Iterator[str]:
    """Yield the devices in an EP's device option. If it contains no device, yield the target's device or an empty string."""
    named = str(ep.provider_options.get(ep.entry.device_option or "", "")).lower()
    types = list(dict.fromkeys(_TYPES.findall(named)))
    chosen = ep.device.type or (ep.entry.virtual_devices[0] if ep.device.virtual and ep.entry.virtual_devices else None)
    if chosen is not None and not types:
        types = [f"{VIRTUAL if ep.device.virtual and not runs else ''}{chosen}"]
    yield from types or [""]

"""Abilities of this machine, such as compiling with an EP, and their probes.

An ability that has not been probed is offered unless the catalog excludes it. The machine may provision a missing toolchain later, and
the first action with the toolchain tests the ability. If a probe fails, the ability is withdrawn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epbuild.catalog.catalog import CPU_EP, entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.cluster.placement import build_label
from epbuild.compile.probing import ProbeResult, Probes
from epbuild.core.errors import StoreError
from epbuild.plan.ability import VIRTUAL, Ability, list_abilities
from epbuild.plan.steps import Action
from epbuild.toolchain.environment import Environment, list_provisioned_toolchains
from epbuild.toolchain.platforms import is_driver_missing

_TYPES = ("cpu", "gpu", "npu")
Listener = Callable[[Sequence[str], ProbeResult], None]


def list_possible_abilities(lacks: Callable[[EpEntry], bool] = is_driver_missing) -> Iterator[Ability]:
    """Yield the abilities that the catalog does not exclude on this machine. EPs whose driver is missing are skipped."""
    for ep in known_eps():
        for entry in entries_for(ep):
            if ep == CPU_EP or not entry.sources or lacks(entry):
                continue
            types = _TYPES if entry.device_option is not None else entry.devices
            for device in ("", *types, *(f"{VIRTUAL}{kind}" for kind in entry.virtual_devices)):
                compiling = Ability(entry, device)
                if _is_possible(compiling):
                    yield compiling
                    if not compiling.is_virtual and device not in entry.emulator_devices:
                        yield replace(compiling, runs=True)


def _is_possible(ability: Ability) -> bool:
    option = ability.entry.device_option
    options = {option: ability.device.upper()} if option is not None and ability.device else {}
    return not any(
        row.stops and row.holds(sys.platform, ability.device_type or row.device, options)
        for row in ability.entry.cannot
        if ability.device or not (row.device or row.when)
    )


class Abilities:
    """Abilities of this machine that have been probed. `listener` receives each new result, and the labels that it is for. Thread-safe."""

    def __init__(self, probes: Probes, listener: Listener) -> None:
        self._probes = probes
        self._listener = listener
        self._found: dict[str, ProbeResult] = {}
        self._judged: set[tuple[str, Path]] = set()
        """Label and interpreter of each ability that was probed after an action failed."""
        self._guard = threading.Lock()

    @property
    def found(self) -> Mapping[str, ProbeResult]:
        """Results of probes, by label."""
        with self._guard:
            return dict(self._found)

    def why_not(self, action: Action) -> str | None:
        """Return why this machine cannot execute an action, as a clause. Return None if no probe excludes it."""
        probes = (self._found.get(build_label(ability)) for ability in list_abilities(action))
        return next((probe.why for probe in probes if probe is not None and probe.outcome == "cannot"), None)

    def judge(self, action: Action, environment: Environment, cancelled: threading.Event) -> None:
        """Probe the abilities that a failed action needs, unless they were probed after an earlier failure. Raises Cancelled."""
        for ability in list_abilities(action):
            judged = (build_label(ability), environment.interpreter)
            if judged not in self._judged:  # otherwise, each failing model would repeat the probe
                self._try(ability, environment, cancelled)
                self._judged.add(judged)

    def survey(self, home: Path, cancelled: threading.Event) -> None:
        """Probe the abilities that the toolchains below `home` provide. Raises Cancelled."""
        toolchains = list(list_provisioned_toolchains(home))
        for ability in list_possible_abilities():
            if ability.device or ability.runs:
                continue
            for toolchain in toolchains:
                environment = toolchain.environment([ability.entry]) if toolchain.has(ability.entry) else None
                if environment is not None and self._try(ability, environment, cancelled) == "does":
                    self._try(replace(ability, runs=True), environment, cancelled)
                    break

    def _try(self, ability: Ability, environment: Environment, cancelled: threading.Event) -> str:
        try:
            probe = self._probes.probe(ability, environment, cancelled)
        except (StoreError, OSError) as error:  # such as a full disk, which is not the EP's fault
            return str(error)
        for shown, result in _draw_conclusions(ability, probe):
            self._note([build_label(one) for one in shown], result)
        return probe.outcome

    def _note(self, labels: Sequence[str], probe: ProbeResult) -> None:
        """Record the result of a probe for `labels`, except for labels where another toolchain had a better result."""
        if probe.outcome == "unclear":
            return
        with self._guard:
            recorded = {label: self._found[label] for label in labels if label in self._found}
            new = [label for label in labels if label not in recorded or recorded[label].outcome != "does"]
            new = [label for label in new if recorded.get(label) != probe]
            self._found.update(dict.fromkeys(new, probe))
        if new:
            self._listener(new, probe)


def _draw_conclusions(ability: Ability, probe: ProbeResult) -> Iterator[tuple[Sequence[Ability], ProbeResult]]:
    """Yield each group of abilities to which the result of a probe applies, with the result for the group.

    If the probed plugin EP is not restricted to a device, the result also covers the devices that the EP would choose itself.
    """
    entry: EpEntry = ability.entry
    chooses = not ability.device and entry.kind == "plugin"
    of_types = {kind: replace(ability, device=kind) for kind in entry.devices} if chooses else {}
    if probe.outcome == "cannot":
        yield [ability, *of_types.values()], probe
    elif probe.device not in of_types:
        yield [ability], probe
    else:
        yield [ability, of_types[probe.device]], probe
        before = [of_types[kind] for kind in entry.devices[: entry.devices.index(probe.device)]]
        yield before, ProbeResult("cannot", f"{entry.ep} offers only this device on this machine: {probe.device}")

"""Abilities of this machine: what it offers, as far as it was tried.

What nobody has tried is offered, if the catalog knows of nothing against it: a machine may make the toolchain that it lacks, and finds out
by its first action. What turned out to be more than it can do is offered no more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epbuild.catalog.catalog import CPU_EP, entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.cluster.labels import label_of_ability
from epbuild.compile.probed import Probes
from epbuild.compile.probing import ProbeResult
from epbuild.core.errors import StoreError
from epbuild.plan.ability import VIRTUAL, Ability, abilities_of
from epbuild.plan.steps import Action
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.host import lacks_driver
from epbuild.toolchain.made import made_toolchains

_TYPES = ("cpu", "gpu", "npu")
Listener = Callable[[Sequence[str], ProbeResult], None]


def possible_abilities(lacks: Callable[[EpEntry], bool] = lacks_driver) -> Iterator[Ability]:
    """What this machine may be able to do, as far as the catalog shows, and whether an EP `lacks` its driver."""
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
    """What this machine can do of what it offers. For any thread; `listener` gets the labels that are found out about."""

    def __init__(self, probes: Probes, listener: Listener) -> None:
        self._probes = probes
        self._listener = listener
        self._found: dict[str, ProbeResult] = {}
        self._judged: set[tuple[str, Path]] = set()
        """What an action failed at before, in which environment."""
        self._guard = threading.Lock()

    @property
    def found(self) -> Mapping[str, ProbeResult]:
        """What came of probes, by label."""
        with self._guard:
            return dict(self._found)

    def why_not(self, action: Action) -> str | None:
        """Why this machine cannot execute an action, as a clause, if that was found out before."""
        probes = (self._found.get(label_of_ability(ability)) for ability in abilities_of(action))
        return next((probe.why for probe in probes if probe is not None and probe.outcome == "cannot"), None)

    def judge(self, action: Action, environment: Environment, cancelled: threading.Event) -> None:
        """Find out whether this machine can do what an action needs, after it failed here. Raises Cancelled."""
        for ability in abilities_of(action):
            judged = (label_of_ability(ability), environment.interpreter)
            if judged not in self._judged:  # else each model that fails would have it made again
                self._try(ability, environment, cancelled)
                self._judged.add(judged)

    def survey(self, home: Path, cancelled: threading.Event) -> None:
        """Find out what this machine can do with the toolchains that are below `home`. Raises Cancelled."""
        made = list(made_toolchains(home))
        for ability in possible_abilities():
            if ability.device or ability.runs:
                continue
            for toolchain in made:
                environment = toolchain.environment([ability.entry]) if toolchain.has(ability.entry) else None
                if environment is not None and self._try(ability, environment, cancelled) == "does":
                    self._try(replace(ability, runs=True), environment, cancelled)
                    break

    def _try(self, ability: Ability, environment: Environment, cancelled: threading.Event) -> str:
        try:
            probe = self._probes.of(ability, environment, cancelled)
        except (StoreError, OSError) as error:  # which a full disk is a reason for, and nothing to judge an EP by
            return str(error)
        for shown, result in _shown(ability, probe):
            self._note([label_of_ability(one) for one in shown], result)
        return probe.outcome

    def _note(self, labels: Sequence[str], probe: ProbeResult) -> None:
        """Take note of what came of a probe, unless another toolchain has shown more."""
        if probe.outcome == "unclear":
            return
        with self._guard:
            known = {label: self._found[label] for label in labels if label in self._found}
            new = [label for label in labels if label not in known or known[label].outcome != "does"]
            new = [label for label in new if known.get(label) != probe]
            self._found.update(dict.fromkeys(new, probe))
        if new:
            self._listener(new, probe)


def _shown(ability: Ability, probe: ProbeResult) -> Iterator[tuple[Sequence[Ability], ProbeResult]]:
    """What a probe shows: with no device named, also of those that a plugin EP would have chosen before, or could not choose."""
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
        yield before, ProbeResult("cannot", f"{entry.ep} offers no such device here, but a {probe.device}")

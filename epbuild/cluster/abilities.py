"""Abilities of this machine: what it offers, as far as it was tried.

What nobody has tried is offered, if the catalog knows of nothing against it: a machine may make the toolchain that it lacks, and finds out
by its first action. What turned out to be more than it can do is offered no more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from epbuild.catalog.catalog import CPU_EP, entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.cluster.labels import label_of_ability
from epbuild.compile.trial import Trial
from epbuild.compile.trials import Trials
from epbuild.core.errors import StoreError
from epbuild.plan.ability import VIRTUAL, Ability, abilities_of
from epbuild.plan.steps import Action
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.host import lacks_driver
from epbuild.toolchain.made import made_toolchains

_TYPES = ("cpu", "gpu", "npu")
Heard = Callable[[str, Trial], None]


def possible_abilities() -> Iterator[Ability]:
    """What this machine may be able to do, as far as the catalog and the drivers that are here show."""
    for ep in known_eps():
        for entry in entries_for(ep):
            if ep == CPU_EP or not entry.sources or lacks_driver(entry):
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
    """What this machine can do of what it offers. For any thread; `heard` gets each label that is found out about."""

    def __init__(self, trials: Trials, heard: Heard) -> None:
        self._trials = trials
        self._heard = heard
        self._found: dict[str, Trial] = {}
        self._guard = threading.Lock()

    @property
    def found(self) -> Mapping[str, Trial]:
        """What came of trials, by label."""
        with self._guard:
            return dict(self._found)

    def why_not(self, action: Action) -> str | None:
        """Why this machine cannot execute an action, as a clause, if that was found out before."""
        trials = (self._found.get(label_of_ability(ability)) for ability in abilities_of(action))
        return next((trial.why for trial in trials if trial is not None and trial.outcome == "cannot"), None)

    def judge(self, action: Action, environment: Environment, cancelled: threading.Event) -> None:
        """Find out whether this machine can do what an action needs, after it failed here. Raises Cancelled."""
        for ability in abilities_of(action):
            self._try(ability, environment, cancelled)

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
            trial = self._trials.of(ability, environment, cancelled)
        except (StoreError, OSError) as error:  # which a full disk is a reason for, and nothing to judge an EP by
            return str(error)
        for shown, of_that in _shown(ability, trial):
            self._note(label_of_ability(shown), of_that)
        return trial.outcome

    def _note(self, label: str, trial: Trial) -> None:
        """Take note of what came of a trial, unless another toolchain has shown more."""
        with self._guard:
            known = self._found.get(label)
            if trial.outcome == "unclear" or (known is not None and known.outcome == "does") or known == trial:
                return
            self._found[label] = trial
        self._heard(label, trial)


def _shown(ability: Ability, trial: Trial) -> Iterator[tuple[Ability, Trial]]:
    """What a trial shows: with no device named, also of those that a plugin EP would have chosen before, or could not choose."""
    yield ability, trial
    entry: EpEntry = ability.entry
    if ability.device or entry.kind != "plugin":
        return
    if trial.outcome == "cannot":
        yield from ((replace(ability, device=kind), trial) for kind in entry.devices)
    elif trial.outcome == "does" and trial.device in entry.devices:
        yield replace(ability, device=trial.device), trial
        for kind in entry.devices[: entry.devices.index(trial.device)]:
            yield (
                replace(ability, device=kind),
                Trial("cannot", f"{entry.ep} offers no {kind} here, and a {trial.device} instead"),
            )

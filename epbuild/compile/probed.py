"""Probes of this machine, each made once for a toolchain and the drivers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from epbuild.cache.records import ActionRecords
from epbuild.cache.staging import staged
from epbuild.compile.probing import ProbeResult, probe_ability
from epbuild.core.digest import document_digest
from epbuild.plan.ability import Ability
from epbuild.plan.request import CONTRACT
from epbuild.toolchain.environment import Environment
from epbuild.toolchain.platforms import drivers_of

_FORMAT = 1


@dataclass(frozen=True)
class Probes:
    """The probes below the root of a cache. Any number of threads may use it."""

    root: Path

    def known(self, ability: Ability, environment: Environment) -> ProbeResult | None:
        """What came of a probe that was made before. Raises StoreError."""
        record = self._records.get(document_digest(_probe_document(ability, environment)))
        try:
            return None if record is None else msgspec.convert(record["result"], ProbeResult)
        except (msgspec.ValidationError, KeyError):
            return None

    def of(self, ability: Ability, environment: Environment, cancelled: threading.Event) -> ProbeResult:
        """What comes of a probe, which is made unless it was before. Raises StoreError, OSError and Cancelled."""
        known = self.known(ability, environment)
        if known is not None:
            return known
        with staged(self.root / "work", "probe") as folder:
            found = probe_ability(ability, environment, folder, cancelled)
        if found.outcome != "unclear":  # which may be for lack of memory, or another thing that passes
            document = _probe_document(ability, environment)
            self._records.put(document_digest(document), {"document": document, "result": msgspec.to_builtins(found)})
        return found

    @property
    def _records(self) -> ActionRecords:
        return ActionRecords(self.root / "probes")


def _probe_document(ability: Ability, environment: Environment) -> dict[str, Any]:
    """All that a probe depends on."""
    entry = ability.entry
    return {
        "format": _FORMAT,
        "contract": CONTRACT,
        "ep": [entry.ep, entry.digest],
        "device": ability.device,
        "runs": ability.runs,
        "toolchain": environment.identity([entry]),
        "drivers": sorted([str(how), version] for how, version in drivers_of([entry]).items()),
    }

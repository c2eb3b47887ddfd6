"""Outputs of one configuration, and orphans that its recipe no longer asks for.

A configuration is a recipe file and what that file was read with (`--set`, variables of the environment). An output belongs to those that
wrote it or would have written the same, so builds of one recipe for several settings, or of several recipes in one folder, leave each
other's outputs alone. What was changed since stays.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.leases import lease, lease_if_free
from epbuild.cache.state import Configuration, Memory, OutputRecord, StepRecord
from epbuild.cache.workspace import Workspace
from epbuild.core.digest import digest_of

PLACE, RESULTS = "place", "results"
"""What the record of an emission's step holds as its result: where its output is, and the keys of the results that are in it."""


class Orphan(Struct, frozen=True):
    """A folder that a step once wrote, with the SHA-256 and the size of each file there by its path below the folder."""

    step: str
    directory: Path
    files: Mapping[str, Mapping[str, Any]]


class Outputs:
    """The outputs that the configuration of `memory` wrote, or found there as it would have written them."""

    def __init__(self, workspace: Workspace, memory: Memory) -> None:
        self._workspace = workspace
        self._memory = memory
        self._places: dict[Path, str] = {}
        self.base = workspace.base

    def place(self, directory: Path) -> str:
        """Where an output is, as seen from the folder of the workspace, so that a checkout that is moved keeps its memory."""
        place = self._places.get(directory)
        if place is None:
            place = self._places[directory] = Path(os.path.relpath(directory, self.base)).as_posix()
        return place

    def last(self, directory: Path) -> OutputRecord | None:
        """What was written into `directory` the last time, by whatever step of whatever configuration. Raises StoreError."""
        return self._memory.output(self.place(directory))

    def record(self, record: StepRecord, files: Mapping[str, Mapping[str, Any]], *, settled: str | None) -> None:
        """Remember that an emission, which ended as in `record`, wrote `files`; the fact that has been `settled` by that is forgotten.

        Raises StoreError.
        """
        place, results = record.result[PLACE], tuple(record.result[RESULTS])
        self._memory.record_output(OutputRecord(place, record.step, record.action_key, results, files), record, settled)

    def adopt(self, records: Iterable[StepRecord]) -> None:
        """Remember that what these emissions would write is in place, even if another process wrote it. Raises StoreError."""
        current = list(records)
        if not current:
            return
        owned, recorded = self._memory.owned(), self._memory.keys(record.step for record in current)
        new = {
            record.result[PLACE]: record
            for record in current
            if not owned.get(record.result[PLACE]) == recorded.get(record.step) == record.action_key
        }
        if new:
            self._memory.adopt(new)

    def writer(self, output: OutputRecord) -> str | None:
        """Who wrote an output, in words; None if this configuration did, or it is not known."""
        wrote, mine = output.owners[0], self._memory.configuration
        if wrote == mine or not wrote.recipe:
            return None
        return f"{wrote.recipe} with other settings" if wrote.recipe == mine.recipe else wrote.recipe

    def orphans(self, wanted: Iterable[Path]) -> tuple[Orphan, ...]:
        """What was written before, does not lie in one of the folders `wanted`, and belongs to no other one. Raises StoreError."""
        return tuple(self._orphan(output) for output in self._unwanted(wanted) if not self.others(output))

    def claimed(self, leaving: Iterable[Path]) -> Collection[Path]:
        """The files of all outputs but those that were written into the folders `leaving`, as absolute paths. Raises StoreError."""
        places = set(map(self.place, leaving))
        others = (output for output in self._workspace.outputs() if output.place not in places)
        return {path for output in others for path in files_of(output, self.base)}

    def release(self, wanted: Iterable[Path]) -> list[OutputRecord]:
        """Leave to others what does not lie in one of the folders `wanted`, and belongs to them as well; returns it as it then is.

        Raises StoreError.
        """
        left = []
        for output in self._unwanted(wanted):
            others = self.others(output)
            if others:
                self._memory.release(output.place, [self._memory.configuration])
                left.append(replace(output, owners=others))
        return left

    def recorded(self, orphan: Orphan) -> OutputRecord | None:
        """What is recorded of an orphan; None once another build has removed it, or has written it for itself. Raises StoreError."""
        output = self.last(orphan.directory)
        return None if output is None or self._orphan(output) != orphan or self.others(output) else output

    def forget(self, output: OutputRecord) -> None:
        """Forget an output, whatever configurations own it. Raises StoreError."""
        self._memory.release(output.place, output.owners)

    @contextmanager
    def held(self, directory: Path, *, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Hold the lease under which an output is touched, for the length of a `with` block. Raises StoreError and Cancelled."""
        with lease(self._workspace.directory, lease_name(self.place(directory)), cancelled=cancelled):
            yield

    @contextmanager
    def held_if_free(self, directory: Path) -> Iterator[bool]:
        """Hold that lease if nobody does; the block gets whether it is held. Raises StoreError."""
        with lease_if_free(self._workspace.directory, lease_name(self.place(directory))) as free:
            yield free

    def others(self, output: OutputRecord, *, recipes: bool = False) -> tuple[Configuration, ...]:
        """The other configurations that an output belongs to, or only those of other recipes; one whose recipe is gone does not count."""
        mine = self._memory.configuration
        return tuple(
            owner
            for owner in output.owners
            if owner != mine and not (recipes and owner.recipe == mine.recipe) and self._is_there(owner)
        )

    def _is_there(self, owner: Configuration) -> bool:
        return bool(owner.recipe) and (self.base / owner.recipe).exists()

    def _unwanted(self, wanted: Iterable[Path]) -> list[OutputRecord]:
        mine = self._memory.configuration
        owned = [output for output in self._workspace.outputs() if mine in output.owners]
        places = {self.place(directory) for directory in wanted} if owned else set()
        return [output for output in owned if output.place not in places]

    def _orphan(self, output: OutputRecord) -> Orphan:
        return Orphan(output.step, self.base / output.place, output.files)


def files_of(output: OutputRecord, base: Path) -> list[Path]:
    """The files of an output below the folder `base`; those of an archive lie beside it."""
    path = base / output.place
    root = path.parent if path.name in output.files and not path.is_dir() else path
    return [root / name for name in output.files]


def lease_name(place: str) -> str:
    """The lease of the workspace under which the output at a place is touched, whichever recipe writes it."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", ".", place)[-60:]
    # Where names differ by their case, one output may be meant all the same.
    return f"output.{readable}.{digest_of(os.path.normcase(place).encode(errors='surrogateescape'))[:16]}"

"""Outputs of one configuration, and orphans that its recipe no longer requests.

A configuration is a recipe file with its settings (`--set`, environment variables). A configuration owns an output if it wrote the output
or would have written the same bytes. Builds of one recipe with several settings, or of several recipes in one folder, therefore keep
each other's outputs. They also keep files that users changed.
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
from epbuild.core.digest import hash_bytes

PLACE, RESULTS = "place", "results"
"""Fields of an emission's result in its step record: the path of the output, and the keys of the results in the output."""


class Orphan(Struct, frozen=True):
    """Output that the recipe no longer requests. `files` maps paths below `directory` to the SHA-256 and size of each file."""

    step: str
    directory: Path
    files: Mapping[str, Mapping[str, Any]]


class Outputs:
    """Outputs of a configuration: a recipe with certain settings. The workspace's memory records them."""

    def __init__(self, workspace: Workspace, memory: Memory) -> None:
        self._workspace = workspace
        self._memory = memory
        self._places: dict[Path, str] = {}
        self.base = workspace.base

    def place(self, directory: Path) -> str:
        """Return the path of an output relative to the workspace's base folder, so that records stay valid in a moved checkout."""
        place = self._places.get(directory)
        if place is None:
            place = self._places[directory] = os.path.relpath(directory, self.base).replace(os.sep, "/")
        return place

    def last(self, directory: Path) -> OutputRecord | None:
        """Return the record of the last output at `directory`, written by any step of any configuration. Raises StoreError."""
        return self._memory.output(self.place(directory))

    def record(self, record: StepRecord, files: Mapping[str, Mapping[str, Any]], *, settled: str | None) -> None:
        """Record the `files` that an emission wrote, and its step record.

        Also delete the workspace's fact that announced these files. `settled` is the fact's name, or None if there is none.
        Raises StoreError.
        """
        place, results = record.result[PLACE], tuple(record.result[RESULTS])
        self._memory.record_output(OutputRecord(place, record.step, record.action_key, results, files), record, settled)

    def adopt(self, records: Iterable[StepRecord]) -> None:
        """Record this configuration as an owner of existing outputs, even if another process wrote them. Raises StoreError."""
        current = list(records)
        if not current:
            return
        owned, recorded = self._memory.read_owned_keys(), self._memory.keys(record.step for record in current)
        new = {
            record.result[PLACE]: record
            for record in current
            if not owned.get(record.result[PLACE]) == recorded.get(record.step) == record.action_key
        }
        if new:
            self._memory.adopt(new)

    def writer(self, output: OutputRecord) -> str | None:
        """Return a phrase that names the writer of an output, or None if this or an unknown configuration wrote the output."""
        wrote, mine = output.owners[0], self._memory.configuration
        if wrote == mine or not wrote.recipe:
            return None
        return f"{wrote.recipe} with other settings" if wrote.recipe == mine.recipe else wrote.recipe

    def orphans(self, wanted: Iterable[Path]) -> tuple[Orphan, ...]:
        """Return the outputs that only this configuration owns, except outputs at the paths `wanted`. Raises StoreError."""
        return tuple(self._make_orphan(output) for output in self._find_unwanted(wanted) if not self.others(output))

    def claimed(self, leaving: Iterable[Path]) -> Collection[Path]:
        """Return the absolute paths of all output files, except in outputs at the paths `leaving`. Raises StoreError."""
        places = set(map(self.place, leaving))
        others = (output for output in self._workspace.outputs() if output.place not in places)
        return {path for output in others for path in list_output_files(output, self.base)}

    def release(self, wanted: Iterable[Path]) -> list[OutputRecord]:
        """Release the ownership of outputs that other configurations also own, except outputs at the paths `wanted`.

        Return the released outputs with their remaining owners. Raises StoreError.
        """
        left = []
        for output in self._find_unwanted(wanted):
            others = self.others(output)
            if others:
                self._memory.release(output.place, [self._memory.configuration])
                left.append(replace(output, owners=others))
        return left

    def recorded(self, orphan: Orphan) -> OutputRecord | None:
        """Return the record of an orphan, or None if another build has removed or rewritten the output. Raises StoreError."""
        output = self.last(orphan.directory)
        return None if output is None or self._make_orphan(output) != orphan or self.others(output) else output

    def forget(self, output: OutputRecord) -> None:
        """Remove an output from the records of all owners. Raises StoreError."""
        self._memory.release(output.place, output.owners)

    @contextmanager
    def held(self, directory: Path, *, cancelled: threading.Event | None = None) -> Iterator[None]:
        """Hold the lease of an output during a `with` block. Raises StoreError and Cancelled."""
        with lease(self._workspace.directory, get_lease_name(self.place(directory)), cancelled=cancelled):
            yield

    @contextmanager
    def held_if_free(self, directory: Path) -> Iterator[bool]:
        """Hold the lease of an output during a `with` block if the lease is free, and yield whether it was. Raises StoreError."""
        with lease_if_free(self._workspace.directory, get_lease_name(self.place(directory))) as free:
            yield free

    def others(self, output: OutputRecord, *, recipes: bool = False) -> tuple[Configuration, ...]:
        """Return the other owners of an output whose recipes still exist. If `recipes` is true, exclude owners with the same recipe."""
        mine = self._memory.configuration
        return tuple(
            owner
            for owner in output.owners
            if owner != mine and not (recipes and owner.recipe == mine.recipe) and self._exists(owner)
        )

    def _exists(self, owner: Configuration) -> bool:
        return bool(owner.recipe) and (self.base / owner.recipe).exists()

    def _find_unwanted(self, wanted: Iterable[Path]) -> list[OutputRecord]:
        mine, owned = self._memory.configuration, self._memory.read_owned_keys()
        unwanted = owned.keys() - {self.place(directory) for directory in wanted} if owned else ()
        # Few outputs are unwanted, and only their records are verified.
        found = self._memory.read_outputs_at(sorted(unwanted)).values()
        return [output for output in found if mine in output.owners]

    def _make_orphan(self, output: OutputRecord) -> Orphan:
        return Orphan(output.step, self.base / output.place, output.files)


def list_output_files(output: OutputRecord, base: Path) -> list[Path]:
    """Return the paths of the files of an output. `base` is the base folder. Files of an archive are in the archive's parent folder."""
    path = base / output.place
    root = path.parent if path.name in output.files and not path.is_dir() else path
    return [root / name for name in output.files]


def get_lease_name(place: str) -> str:
    """Return the name of the workspace's lease for the output at `place`. All recipes use the same name."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", ".", place)[-60:]
    # On Windows, two places that differ only in case are the same output.
    return f"output.{readable}.{hash_bytes(os.path.normcase(place).encode(errors='surrogateescape'))[:16]}"

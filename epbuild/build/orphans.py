"""Outputs that the recipe no longer asks for: remembered when they are emitted, and removed by the next build of the whole recipe.

An output belongs to a recipe file and to what that file was read with (`--set`, variables of the environment), so that builds of one recipe
for several settings, or of several recipes in one folder, leave each other's outputs alone. What somebody changed since stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epbuild.build.removal import Cleaned, Emitted
from epbuild.canonical import canonical_json
from epbuild.store import Digests, Workspace

_FACT = "emitted by"


@dataclass(frozen=True)
class Orphan:
    """A folder that a step once wrote, with the SHA-256 of each file there by its path below the folder."""

    step: str
    directory: Path
    files: Mapping[str, str]


class Outputs:
    """The outputs of one recipe file, read with `settings` and `variables`, that a workspace remembers."""

    def __init__(self, workspace: Workspace, recipe: Path, settings: Iterable[str], variables: Mapping[str, str | None]) -> None:
        self._workspace = workspace
        self._base = workspace.directory.parent
        self._prefix = f"{_FACT} {recipe.name}: "
        self._inputs = canonical_json({"settings": list(settings), "variables": dict(variables)})

    def record(self, step: str, directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember that `step` wrote `files` into `directory`. Raises StoreError."""
        document = {"step": step, "inputs": self._inputs, "files": {name: file["digest"] for name, file in files.items()}}
        self._workspace.record_fact(self._name(directory), canonical_json(document))

    def last(self, directory: Path) -> Orphan | None:
        """What was written into `directory` the last time, by whatever step. Raises StoreError."""
        name = self._name(directory)
        text = self._workspace.fact(name)
        return self._orphan(name, json.loads(text)) if text is not None else None

    def orphans(self, wanted: Iterable[Path]) -> tuple[Orphan, ...]:
        """What was written before and does not lie in one of the folders `wanted`. Raises StoreError."""
        current = {self._name(directory) for directory in wanted}
        left = []
        for name, text in self._workspace.facts(self._prefix).items():
            if name not in current:
                document = json.loads(text)
                if document["inputs"] == self._inputs:
                    left.append(self._orphan(name, document))
        return tuple(left)

    def remove(self, orphan: Orphan, digests: Digests, claimed: Collection[Path]) -> Cleaned:
        """Remove an orphan, less the files that are `claimed` by what the recipe asks for now, and forget it.

        Raises EnvironmentFailure when the place cannot be written, StoreError when a file cannot be read, or the workspace not be written.
        """
        emitted = Emitted(orphan.step, orphan.directory, orphan.files, digests, claimed=claimed)
        cleaned = emitted.remove(self._base)
        self.forget(orphan.directory)
        return cleaned

    def forget(self, directory: Path) -> None:
        """Forget that something was written into `directory`. Raises StoreError."""
        self._workspace.forget_facts([self._name(directory)])

    def _orphan(self, name: str, document: Mapping[str, Any]) -> Orphan:
        return Orphan(document["step"], self._base / name.removeprefix(self._prefix), document["files"])

    def _name(self, directory: Path) -> str:
        # Relative to the recipe, so that a checkout that is moved keeps its memory.
        return f"{self._prefix}{Path(os.path.relpath(directory, self._base)).as_posix()}"

"""Toolchains that this user has made, whichever recipes they were made for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.core.errors import ToolchainError
from epbuild.recipe.requirement import read_requirement
from epbuild.toolchain.environment import Environment, modules_of
from epbuild.toolchain.fingerprint import look
from epbuild.toolchain.provision import complete_file, provisioned


class MadeToolchain(Struct, frozen=True):
    """The folder of a complete environment, and the requirements that it was made for."""

    folder: Path
    packages: tuple[str, ...]

    def has(self, entry: EpEntry) -> bool:
        """Whether the packages that were asked for have the EP's among them."""
        return not {read_requirement(package).distribution for package in self.packages}.isdisjoint(entry.distributions)

    def environment(self, entries: Sequence[EpEntry]) -> Environment | None:
        """The environment, for these EPs; None where it does not run any more."""
        interpreter, memory = provisioned(self.folder), self.folder / "fingerprint.json"
        if interpreter is None:
            return None
        modules = frozenset(modules_of(entries))
        try:
            seen = look(interpreter, modules, memory)
        except ToolchainError:
            return None
        return Environment(self.folder.name, interpreter, seen.fingerprint, memory, modules, seen.states)


def made_toolchains(home: Path) -> Iterator[MadeToolchain]:
    """The complete environments below the folder of all, the newest first."""
    for marker in sorted(home.glob(f"*/{complete_file(home).name}"), key=_time_of, reverse=True):
        try:
            packages = tuple(str(package) for package in json.loads(marker.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        yield MadeToolchain(marker.parent, packages)


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has gone meanwhile
        return 0.0

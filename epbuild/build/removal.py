"""Takes an emitted output away: what epbuild wrote goes, as one, and what it did not write, or somebody has changed since, stays."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epbuild.emit import emitted_files, prepare, swap_in
from epbuild.plan import MANIFEST
from epbuild.store import Digests, StatKey, unchanged

Why = Literal["not made by epbuild", "changed since"]


@dataclass(frozen=True)
class Cleaned:
    """What was removed of one output, in POSIX paths below its directory, and what stayed there, with why."""

    step: str
    directory: Path
    removed: tuple[str, ...]
    size: int
    kept: Mapping[str, Why]

    def kept_as(self, why: Why) -> tuple[Path, ...]:
        """The files that stayed for that reason."""
        return tuple(self.directory / name for name, reason in self.kept.items() if reason == why)


class Emitted:
    """What lies in the `directory` of the emission `step`, which wrote files of the SHA-256 `recorded`, by their paths there."""

    def __init__(
        self,
        step: str,
        directory: Path,
        recorded: Mapping[str, str],
        digests: Digests,
        *,
        force: bool = False,
        claimed: Collection[Path] = (),
    ) -> None:
        """With `force`, changed files go as well; those that are `claimed`, as absolute paths, belong to another output now."""
        self._step = step
        self._directory = directory
        self._recorded = recorded
        self._digests = digests
        self._force = force
        self._claimed = claimed
        self._keys: dict[str, StatKey] = {}

    def remove(self, top: Path) -> Cleaned:
        """Swap in a tree that holds only what stays, so that no reader sees half of an output; folders below `top` that are empty then go.

        Raises EnvironmentFailure when the place cannot be written, StoreError when a file cannot be read.
        """
        if not self._directory.parent.is_dir():
            return self.sort_out()
        with prepare(self._directory, self._made, self._step) as staged:
            found = self.sort_out()
            if found.removed:
                swap_in(staged, self._directory, self._going, self._step)
        _remove_empty(self._directory, top)
        return found

    def sort_out(self) -> Cleaned:
        """Which files go, and which stay. Raises StoreError when a file cannot be read."""
        directory, removed, kept = self._directory, list[str](), dict[str, Why]()
        if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
            return Cleaned(self._step, directory, (), 0, {"": "not made by epbuild"})
        made = self._expected()
        for path in _files(directory):
            name = path.relative_to(directory).as_posix()
            if path.absolute() in self._claimed:
                continue
            if name not in made or path.is_symlink():
                kept[name] = "not made by epbuild"
            else:
                key = StatKey.of(path.stat())
                if self._force or self._digests.of(path) in made[name]:
                    self._keys[name] = key
                    removed.append(name)
                else:
                    kept[name] = "changed since"
        size = sum((directory / name).stat().st_size for name in removed)
        return Cleaned(self._step, directory, tuple(removed), size, kept)

    def _going(self, folder: Path) -> Collection[str]:
        """What goes, less what was changed in the meantime."""
        return {name for name, key in self._keys.items() if unchanged(folder / name, key)}

    def _made(self, folder: Path) -> Collection[str]:
        return emitted_files(folder / MANIFEST) | self._recorded.keys()

    def _expected(self) -> dict[str, set[str]]:
        """What the files that epbuild made may contain: what was recorded here, or what the manifest says, which may be newer."""
        manifest = self._directory / MANIFEST
        expected = {name: {digest} for name, digest in self._recorded.items()}
        if emitted_files(manifest):
            for file in json.loads(manifest.read_bytes())["files"]:
                expected.setdefault(file["path"], set()).add(file["sha256"])
            if not self._recorded:
                expected[MANIFEST] = {self._digests.of(manifest)}
        return expected


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())


def _remove_empty(directory: Path, top: Path) -> None:
    """Remove a directory if it is empty, and those above it, below `top`, that are then empty as well."""
    for folder in (directory, *directory.parents):
        if folder == top or not folder.is_relative_to(top):
            return
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return

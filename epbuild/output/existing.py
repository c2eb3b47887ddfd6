"""Existing files in the place of an output: what epbuild wrote, what was changed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from epbuild.cache.digests import Digests, StatKey
from epbuild.cache.workspace import Workspace
from epbuild.core.canonical import canonical_json
from epbuild.core.directory import Owned
from epbuild.core.errors import Problem, StepId, StoreError
from epbuild.core.shown import shown_path
from epbuild.output.owned import listed_files
from epbuild.plan.steps import Emission


class Announced:
    """What the workspace remembers of files that were about to be put in place, under the name of a `fact`."""

    def __init__(self, workspace: Workspace, fact: str) -> None:
        self._workspace = workspace
        self.fact = fact
        text = workspace.fact(fact)
        self.files: Mapping[str, Collection[str]] = json.loads(text) if text is not None else {}
        """Their SHA-256, by their paths."""

    def add(self, files: Mapping[str, str]) -> None:
        """Remember files, beside those that were known at first. Raises StoreError."""
        both = {name: set(digests) for name, digests in self.files.items()}
        for name, digest in files.items():
            both.setdefault(name, set()).add(digest)
        self._workspace.record_fact(self.fact, canonical_json({name: sorted(digests) for name, digests in both.items()}))


class Written(Owned):
    """The files that epbuild wrote into an output.

    They are known by what is `recorded`, the SHA-256 that each had whenever epbuild wrote it, by their paths below the output's folder (an
    archive's below the folder that it lies in), and by what is in the output: a manifest lists the others, and is taken as it is where
    nothing is recorded of it.
    """

    def __init__(
        self,
        recorded: Mapping[str, Collection[str]],
        digests: Digests,
        announced: Announced | None = None,
    ) -> None:
        self.recorded = recorded
        self.kept: dict[str, str] = {}
        """What was changed since, by its path, and the path under which a publication has kept it."""
        self._digests = digests
        self._announced = announced
        self._read: dict[str, tuple[StatKey, str]] = {}

    @classmethod
    def of(cls, workspace: Workspace, place: str, recorded: Iterable[Mapping[str, str]], digests: Digests) -> Written:
        """What was written to `place`, as seen from the workspace's folder: as `recorded` by whatever wrote there, and as announced since.

        Raises StoreError.
        """
        announced = Announced(workspace, f"announced: {place}")
        known: dict[str, set[str]] = {name: set(later) for name, later in announced.files.items()}
        for files in recorded:
            for name, digest in files.items():
                known.setdefault(name, set()).add(digest)

        return cls(known, digests, announced)

    def announce(self, files: Mapping[str, Mapping[str, object]]) -> None:
        """Remember that these files are about to be put in place: should that be the last that is remembered, they are epbuild's.

        Raises StoreError.
        """
        if self._announced is not None:
            self._announced.add({name: str(file["digest"]) for name, file in files.items()})

    @property
    def announcement(self) -> str | None:
        """The fact of the workspace that has what was announced: it is forgotten once what came of it is remembered."""
        return self._announced.fact if self._announced is not None else None

    def problems(self, emission: Emission) -> list[Problem]:
        return [
            Problem(
                "EPB435",
                f"{shown_path(emission.root / name)} was changed after epbuild wrote it: it is kept"
                + ("" if name == kept else f" as {shown_path(emission.root / kept)}"),
                StepId(emission.id),
                "It is yours from now on; remove it if it is not wanted.",
            )
            for name, kept in sorted(self.kept.items())
        ]

    def linked(self, path: Path, name: str) -> None:
        """Take note that the file was given another link, which changes its times and nothing else."""
        known, now = self._read.get(name), StatKey.of(path, path.lstat())
        if known is not None and now._replace(ctime_ns=known[0].ctime_ns) == known[0]:
            self._read[name] = (now, known[1])

    def wrote(self, folder: Path) -> Collection[str]:
        """The files that epbuild wrote into a folder (or to an archive), whether they are there or not, and changed since or not."""
        return listed_files(folder).keys() | self.recorded.keys()

    def as_written(self, folder: Path) -> Collection[str]:
        """Those of a folder that are there as they were written."""
        return self._as_written(folder, listed=folder)

    def archive_as_written(self, path: Path) -> Collection[str]:
        """The same of an archive and the files about it, which lie in the same folder."""
        return self._as_written(path.parent, listed=path)

    def changed(self, path: Path) -> list[str]:
        """What was changed since, of a folder or of an archive and the files about it."""
        root = path if path.is_dir() else path.parent
        if path.is_symlink() or (not path.is_dir() and path.name not in self.recorded):
            return []
        there = self._as_written(root, listed=path)
        return sorted(name for name in self.wrote(path) if name not in there and os.path.lexists(root / name))

    def digest(self, path: Path, name: str) -> str | None:
        """The SHA-256 of the regular file at `path`, which is read once under that name; None where it is none or cannot be read."""
        return self._digests_of({name: path}).get(name)

    def _as_written(self, root: Path, listed: Path) -> set[str]:
        expected = {name: set(digests) for name, digests in self.recorded.items()}
        taken_as_they_are = set()
        for name, file in listed_files(listed).items():
            if file.sha256 is not None:
                expected.setdefault(name, set()).add(file.sha256)
            elif file.by_name and name not in self.recorded:
                taken_as_they_are.add(name)
        found = self._digests_of({name: root / name for name in expected.keys() | taken_as_they_are})
        return {name for name, digest in found.items() if name in taken_as_they_are or digest in expected[name]}

    def _digests_of(self, paths: Mapping[str, Path]) -> dict[str, str]:
        found: dict[str, str] = {}
        unread: dict[str, tuple[Path, StatKey]] = {}
        for name, path in paths.items():
            with suppress(OSError):
                status = path.lstat()
                key = StatKey.of(path, status)
                match self._read.get(name):
                    case (known, digest) if known == key:
                        found[name] = digest
                    case _ if stat.S_ISREG(status.st_mode):
                        unread[name] = (path, key)
        for name, digest in _read(self._digests, unread):
            self._read[name] = (unread[name][1], digest)
            found[name] = digest
        return found


def _read(digests: Digests, files: Mapping[str, tuple[Path, StatKey]]) -> Iterable[tuple[str, str]]:
    try:
        found = digests.of_many(path for path, _ in files.values())
    except StoreError:
        found = {}
        for path, _ in files.values():
            with suppress(StoreError):
                found[path] = digests.of(path)
    return [(name, found[path]) for name, (path, _) in files.items() if path in found]

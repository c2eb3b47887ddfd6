"""Existing files at the path of an output, unchanged or changed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.archive.artifact import extract_own_manifest
from epbuild.cache.digests import Digests, StatKey
from epbuild.cache.workspace import Workspace
from epbuild.core.canonical import encode_canonical
from epbuild.core.defaults import MANIFEST, STATEMENT
from epbuild.core.directory import Owned
from epbuild.core.errors import Problem, StepId, StoreError
from epbuild.core.safepath import is_anchored, is_outside, read_regular
from epbuild.core.shown import format_path
from epbuild.output.manifest import FORMAT
from epbuild.plan.steps import Emission


class Listed(Struct, frozen=True):
    """Entry for a file in an output's own list. A value that the list lacks is None. The size is in bytes."""

    sha256: str | None = None
    size: int | None = None
    by_name: bool = False
    """True if the file belongs to epbuild regardless of its content. Other files must match the SHA-256 in the output's list of files.

    That list may be forged."""


def read_listed_files(output: Path) -> dict[str, Listed]:
    """Return the files that epbuild wrote according to the output's own list; empty if there is no such list.

    The paths in a folder are POSIX paths below it, and include the manifest. An archive has one path, its own name.
    """
    if not output.exists():
        return {}
    if output.is_file():
        from epbuild.archive import formats  # most outputs are folders with a manifest

        return {output.name: Listed(by_name=True)} if formats.read_listed(output) is not None else {}
    try:
        document = json.loads(read_regular(output / MANIFEST))
    except (OSError, ValueError, RecursionError):
        from epbuild.archive import oci_layout

        return {path: Listed(digest) for path, digest in oci_layout.read_listed(output).items()}
    try:
        return _read_manifest(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _read_manifest(document: Mapping[str, Any]) -> dict[str, Listed]:
    """Return the files in the manifest of a folder or of a model package."""
    own = extract_own_manifest(document)
    if own["format"] != FORMAT:
        return {}
    files = {path: _read_facts(file) for file in own["files"] if not _is_unsafe(path := str(file["path"]))}
    provenance = str(own.get("provenance", ""))
    unlisted = [MANIFEST, *([provenance] if provenance.endswith(STATEMENT) and not _is_unsafe(provenance) else [])]
    return {**files, **dict.fromkeys(unlisted, Listed(by_name=True))}


def _is_unsafe(path: str) -> bool:
    return is_anchored(path) or is_outside(path)


def _read_facts(file: Mapping[str, Any]) -> Listed:
    sha256, size = file.get("sha256"), file.get("size")
    return Listed(sha256 if isinstance(sha256, str) else None, size if isinstance(size, int) else None)


class OwnedFiles(Owned):
    """Files that epbuild wrote to an output.

    `recorded` has every SHA-256 with which epbuild wrote a file, by the file's path below the output's folder or below an archive's
    parent folder. Files in the output's own list also count. A manifest that was not recorded is accepted with any content.
    """

    def __init__(
        self,
        recorded: Mapping[str, Collection[str]],
        digests: Digests,
        workspace: Workspace | None = None,
        announcement: str | None = None,
    ) -> None:
        self.recorded = recorded
        self.kept: dict[str, str] = {}
        """Files that were changed after epbuild wrote them, by path. The value is the path at which an emission kept the file."""
        self.announcement = announcement
        """Name of the workspace's fact with the announced files. The fact is deleted once the emission is recorded."""
        self._workspace = workspace
        self.digests = digests
        self._read: dict[str, tuple[StatKey, str]] = {}

    @classmethod
    def of(cls, workspace: Workspace, place: str, recorded: Mapping[str, str], digests: Digests) -> OwnedFiles:
        """Return the files that epbuild wrote to `place`, a path relative to the workspace's folder, from records and announcements.

        Raises StoreError.
        """
        fact = f"announced: {place}"
        known = _read_announced(workspace, fact)
        for name, digest in recorded.items():
            known.setdefault(name, set()).add(digest)
        return cls(known, digests, workspace, fact)

    def announce(self, files: Mapping[str, Mapping[str, object]], accepted: Mapping[str, Path]) -> None:
        """Record files that are about to be moved into place, so that epbuild recognizes them even if the build is killed.

        Also record the existing files `accepted`, which are not recorded yet but belong to epbuild. Raises StoreError.
        """
        if self._workspace is None or self.announcement is None:
            return
        known = _read_announced(self._workspace, self.announcement)
        existing = self._hash_files(accepted)
        announced = {name: str(file["digest"]) for name, file in files.items()}
        for name, digest in (*existing.items(), *announced.items()):
            known.setdefault(name, set()).add(digest)
        text = encode_canonical({name: sorted(digests) for name, digests in known.items()})
        self._workspace.record_fact(self.announcement, text)

    def problems(self, emission: Emission) -> list[Problem]:
        """Return a warning for each changed file that was kept."""
        return [
            Problem(
                "EPB435",
                f"{format_path(emission.root / name)} was changed after epbuild wrote it and is kept"
                + ("" if name == kept else f" as {format_path(emission.root / kept)}"),
                StepId(emission.id),
                "Delete the file if you do not need it: epbuild no longer manages it.",
            )
            for name, kept in sorted(self.kept.items())
        ]

    def note_link(self, path: Path, name: str) -> None:
        """Update the known change time of a file after another hard link to the file was created."""
        known, now = self._read.get(name), StatKey.of(path, path.lstat())
        if known is not None and now._replace(ctime_ns=known[0].ctime_ns) == known[0]:
            self._read[name] = (now, known[1])

    def list_written(self, folder: Path) -> Collection[str]:
        """Return the files that epbuild wrote to a folder (or to an archive), including missing and changed files."""
        return read_listed_files(folder).keys() | self.recorded.keys()

    def list_unchanged(self, folder: Path) -> Collection[str]:
        """Return the files in a folder that have not changed since epbuild wrote them."""
        return self._find_unchanged(folder, listed=folder)

    def list_unchanged_in_archive(self, path: Path) -> Collection[str]:
        """Return the names of an archive and its provenance file, if they have not changed since epbuild wrote them."""
        return self._find_unchanged(path.parent, listed=path)

    def find_accepted(self, root: Path, listed: Path) -> dict[str, Path]:
        """Return the paths of the files below `root` that are accepted with any content, according to the list of the output `listed`."""
        files = read_listed_files(listed)
        return {name: root / name for name, file in files.items() if file.by_name and name not in self.recorded}

    def list_changed(self, path: Path) -> list[str]:
        """Return the files that have changed: files in a folder, or an archive and its provenance file."""
        root = path if path.is_dir() else path.parent
        if path.is_symlink() or (not path.is_dir() and path.name not in self.recorded):
            return []
        unchanged = self._find_unchanged(root, listed=path)
        return sorted(name for name in self.list_written(path) if name not in unchanged and os.path.lexists(root / name))

    def digest(self, path: Path, name: str) -> str | None:
        """Return the SHA-256 of the regular file at `path`; None if it cannot be read. The file is read only once for each `name`."""
        return self._hash_files({name: path}).get(name)

    def _find_unchanged(self, root: Path, listed: Path) -> set[str]:
        expected = {name: set(digests) for name, digests in self.recorded.items()}
        for name, file in read_listed_files(listed).items():
            if file.sha256 is not None:
                expected.setdefault(name, set()).add(file.sha256)
        accepted = self.find_accepted(root, listed)
        found = self._hash_files({**accepted, **{name: root / name for name in expected}})
        return {name for name, digest in found.items() if name in accepted or digest in expected[name]}

    def _hash_files(self, paths: Mapping[str, Path]) -> dict[str, str]:
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
        for name, digest in _hash_readable(self.digests, unread):
            self._read[name] = (unread[name][1], digest)
            found[name] = digest
        return found


def _read_announced(workspace: Workspace, fact: str) -> dict[str, set[str]]:
    text = workspace.fact(fact)
    return {name: set(digests) for name, digests in json.loads(text).items()} if text is not None else {}


def _hash_readable(digests: Digests, files: Mapping[str, tuple[Path, StatKey]]) -> Iterable[tuple[str, str]]:
    try:
        found = digests.of_many(path for path, _ in files.values())
    except StoreError:
        found = {}
        for path, _ in files.values():
            with suppress(StoreError):
                found[path] = digests.of(path)
    return [(name, found[path]) for name, (path, _) in files.items() if path in found]

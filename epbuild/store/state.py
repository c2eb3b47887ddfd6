"""A workspace: the `.epbuild` folder beside a recipe, with what epbuild remembers of it and the room to work in.

All that it remembers can be found again: losing the folder costs time, never an artifact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from epbuild.canonical import canonical_json
from epbuild.store import staging
from epbuild.store.database import Database
from epbuild.store.digests import StatKey
from epbuild.store.failures import explained
from epbuild.store.leases import any_held

_VERSION = 1
_SCHEMA = (
    """CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
       ctime_ns INTEGER NOT NULL, inode TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE steps (step TEXT PRIMARY KEY, action_key TEXT NOT NULL, key_document TEXT NOT NULL,
       result TEXT NOT NULL, finished REAL NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE measurements (subject TEXT PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER)
       WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
)


@dataclass(frozen=True)
class StepRecord:
    """How a step last ended here: its action key, the document behind the key, its result; `finished` in Unix seconds."""

    step: str
    action_key: str
    key_document: Mapping[str, Any]
    result: Mapping[str, Any]
    finished: float


@dataclass(frozen=True)
class Measurement:
    """What an action or a step cost the last time."""

    seconds: float
    peak_rss_bytes: int | None = None


class FileMemory:
    """The digests of files by their stat, kept in a workspace; a `StatMemory`."""

    def __init__(self, database: Database, root: Path) -> None:
        self._database = database
        self._root = f"{root}{os.sep}"

    def get(self, path: str) -> tuple[StatKey, str] | None:
        """The stat key and the digest that were last put for the absolute `path`. Raises StoreError."""
        query = "SELECT size, mtime_ns, ctime_ns, inode, digest FROM files WHERE path = ?"
        for size, mtime_ns, ctime_ns, inode, digest in self._database.read(query, (self._name(path),)):
            return StatKey(size, mtime_ns, ctime_ns, int(inode)), digest
        return None

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        """Remember, for each absolute path, its stat key and digest. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO files (path, size, mtime_ns, ctime_ns, inode, digest) VALUES (?, ?, ?, ?, ?, ?)",
            # Inode numbers on Windows are up to 128 bits, SQLite's integers 64.
            (
                (self._name(path), key.size, key.mtime_ns, key.ctime_ns, str(key.inode), digest)
                for path, (key, digest) in entries.items()
            ),
        )

    def _name(self, path: str) -> str:
        # Relative inside the workspace, so that a checkout that is moved keeps its memory.
        return path.removeprefix(self._root)


class Workspace:
    """The folder `directory`; any number of threads and processes may have it open at once."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.directory = directory
        self.files = FileMemory(database, directory.parent)
        self._database = database

    @classmethod
    def open(cls, directory: Path, *, create: bool = True) -> Workspace:
        """Open the workspace, and make it where it is not.

        Without `create` nothing is made: where there is no workspace, or none that this user may write to, one in
        memory takes its place. Raises StoreError when the folder cannot be made or its state cannot be used.
        """
        directory = directory.absolute()
        if create:
            with explained(f"make {directory}", elsewhere=None):
                directory.mkdir(parents=True, exist_ok=True)
                _hide_from_git(directory)
            return cls(directory, Database(directory / "state.sqlite", _SCHEMA, _VERSION))
        path = directory / "state.sqlite"
        usable = os.access(path, os.R_OK | os.W_OK) and os.access(directory, os.W_OK | os.X_OK)
        return cls(directory, Database(path if usable else None, _SCHEMA, _VERSION))

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the state."""
        self._database.close()

    @property
    def logs(self) -> Path:
        """The folder for the logs of steps; made on first use, if the workspace is."""
        return self._folder("logs")

    @property
    def tmp(self) -> Path:
        """The folder for what lasts no longer than an action; made on first use, if the workspace is."""
        return self._folder("tmp")

    def staging(self, name: str) -> AbstractContextManager[Path]:
        """Lend a new, empty directory for the length of a `with` block, and remove it afterwards. Raises StoreError."""
        return staging.staged(self.tmp, name)

    def sweep(self) -> None:
        """Remove the staging directories that killed processes left. Raises StoreError."""
        staging.sweep(self.directory / "tmp")

    def step(self, step: str) -> StepRecord | None:
        """How the step last ended, if it ever did. Raises StoreError."""
        query = "SELECT step, action_key, key_document, result, finished FROM steps WHERE step = ?"
        for name, key, key_document, result, finished in self._database.read(query, (step,)):
            return StepRecord(name, key, json.loads(key_document), json.loads(result), finished)
        return None

    def steps(self) -> Iterator[StepRecord]:
        """How every step last ended. Raises StoreError."""
        for name, key, key_document, result, finished in self._database.read(
            "SELECT step, action_key, key_document, result, finished FROM steps ORDER BY step"
        ):
            yield StepRecord(name, key, json.loads(key_document), json.loads(result), finished)

    def forget_steps(self, steps: Iterable[str]) -> None:
        """Forget how the steps ended: all of them, or on failure none. Raises StoreError."""
        self._database.write("DELETE FROM steps WHERE step = ?", ((step,) for step in steps))

    def record_steps(self, records: Iterable[StepRecord]) -> None:
        """Remember how steps ended, in place of what was known: all of them, or on failure none. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO steps (step, action_key, key_document, result, finished) VALUES (?, ?, ?, ?, ?)",
            (
                (
                    record.step,
                    record.action_key,
                    canonical_json(record.key_document),
                    canonical_json(record.result),
                    record.finished,
                )
                for record in records
            ),
        )

    def measurement(self, subject: str) -> Measurement | None:
        """What the action key or step cost the last time, if it is known. Raises StoreError."""
        rows = self._database.read("SELECT seconds, peak_rss_bytes FROM measurements WHERE subject = ?", (subject,))
        return Measurement(*rows[0]) if rows else None

    def record_measurement(self, subject: str, measurement: Measurement) -> None:
        """Remember what the action key or step cost. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO measurements (subject, seconds, peak_rss_bytes) VALUES (?, ?, ?)",
            [(subject, measurement.seconds, measurement.peak_rss_bytes)],
        )

    def fact(self, name: str) -> str | None:
        """The text that was last recorded under `name`. Raises StoreError."""
        rows = self._database.read("SELECT text FROM facts WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def record_fact(self, name: str, text: str) -> None:
        """Remember `text` under `name`, for instance what was found of a content by its digest. Raises StoreError."""
        self._database.write("INSERT OR REPLACE INTO facts (name, text) VALUES (?, ?)", [(name, text)])

    def facts(self, prefix: str) -> dict[str, str]:
        """All texts that are recorded under names that begin with `prefix`, by name. Raises StoreError."""
        query = "SELECT name, text FROM facts WHERE substr(name, 1, ?) = ? ORDER BY name"
        return dict(self._database.read(query, (len(prefix), prefix)))

    def forget_facts(self, names: Iterable[str]) -> None:
        """Forget what was recorded under the names: all of them, or on failure none. Raises StoreError."""
        self._database.write("DELETE FROM facts WHERE name = ?", ((name,) for name in names))

    @property
    def lasting(self) -> bool:
        """Whether this is the workspace on disk, and not one in memory that stands in for it."""
        return self._database.path is not None

    def busy(self) -> bool:
        """Whether a build is at work here: it holds a staging directory or a lease. Raises StoreError."""
        return any_held(self.directory / "tmp") or any_held(self.directory / "leases")

    def _folder(self, name: str) -> Path:
        folder = self.directory / name
        if self.lasting:
            with explained(f"make {folder}", elsewhere=None):
                folder.mkdir(exist_ok=True)
        return folder


def _hide_from_git(directory: Path) -> None:
    """Have git take no notice of the folder, whatever the project's own `.gitignore` says. Raises OSError."""
    place = directory / ".gitignore"
    if not place.exists():
        from epbuild.newfile import new_file  # needed once in the life of a workspace

        with new_file(place, "*\n", overwrite=True):
            pass

"""A workspace: the `.epbuild` folder beside a recipe.

It has what epbuild remembers of the recipe, and the room to work in. All that it remembers can be found again: losing the folder costs
time, never an artifact. A checkout may bring a workspace along, so only what this user's epbuild wrote is believed, and no link in the
folder is followed to write or to delete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct

from epbuild.cache import staging
from epbuild.cache.database import Database
from epbuild.cache.digests import StatKey
from epbuild.cache.errors import explained
from epbuild.cache.leases import any_held
from epbuild.cache.location import known_workspace_key, workspace_key
from epbuild.cache.memory import Configuration, Memory, OutputRecord, StepRecord, all_outputs, all_steps
from epbuild.cache.schema import TABLES, VERSION
from epbuild.core.errors import Problem, StoreError
from epbuild.core.host import on_windows
from epbuild.core.shown import shown_path

_STATE = "state.sqlite"
_FOLDERS = ("tmp", "logs", "leases", "reports", "rebuilt")
_MAX_STATE_BYTES = 504
"""Bytes of a path that SQLite opens on Linux: 512, less what it adds for its journal."""
_FILES = "SELECT path, size, mtime_ns, ctime_ns, inode, digest, checksum FROM files"
_MANY = 300


class Measurement(Struct, frozen=True):
    """What an action or a step cost the last time."""

    seconds: float
    peak_rss_bytes: int | None = None


class FileMemory:
    """The digests of files by their stat, kept in a workspace; a `StatMemory`."""

    def __init__(self, database: Database, root: Path) -> None:
        self._database = database
        self._root = f"{root}{os.sep}"
        self._asked = 0
        self._known: dict[str, tuple[StatKey, str]] | None = None
        """All of them, once many were asked for; what another process has put since is not among them."""

    def get(self, path: str) -> tuple[StatKey, str] | None:
        """The stat key and the digest that were last put for the absolute `path`. Raises StoreError."""
        name = self._name(path)
        self._asked += 1
        if self._asked == _MANY:  # to look up one after the other takes ten times as long as to read them all
            self._known = {row[0]: _file(row) for row in self._database.read(_FILES)}
        if self._known is not None:
            return self._known.get(name)
        rows = self._database.read(f"{_FILES} WHERE path = ?", (name,))
        return _file(rows[0]) if rows else None

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        """Remember, for each absolute path, its stat key and digest. Raises StoreError."""
        if self._known is not None:
            self._known.update({self._name(path): entry for path, entry in entries.items()})
        self._database.write(
            "INSERT OR REPLACE INTO files (path, size, mtime_ns, ctime_ns, inode, digest, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)",
            # Inode numbers on Windows are up to 128 bits, SQLite's integers 64.
            (
                self._database.sealed(self._name(path), key.size, key.mtime_ns, key.ctime_ns, str(key.inode), digest)
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
        """Open the workspace, and create it if there is none.

        Without `create`, nothing is created. A workspace in memory takes the place of one that is missing, that another user wrote, or that
        this user may not write to, with a copy of what this user may read. Raises StoreError if the folder cannot be created, its state
        cannot be used, or the path is too long for that.
        """
        directory = directory.absolute()
        size = len(os.fsencode(directory / _STATE))
        if size > _MAX_STATE_BYTES and not on_windows():
            message = f"the path of epbuild's memory in this folder, {_STATE}, has {size} bytes"
            hint = f"Move the recipe up: SQLite takes {_MAX_STATE_BYTES} bytes."
            raise StoreError(Problem("EPB516", message, directory.parent, hint))
        _refuse_links(directory)
        if create:
            with explained(f"make {directory}", elsewhere=None):
                directory.mkdir(parents=True, exist_ok=True)
                _hide_from_git(directory)
            return cls(directory, Database(directory / _STATE, TABLES, VERSION, workspace_key()))
        path, key = directory / _STATE, known_workspace_key()
        readable = os.access(path, os.R_OK)
        usable = readable and os.access(path, os.W_OK) and os.access(directory, os.W_OK | os.X_OK)
        copied = path if readable and not usable else None
        # Without a key, no file is this user's.
        key = key or os.urandom(32)
        return cls(directory, Database(path if usable else None, TABLES, VERSION, key, copied=copied, create=False))

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the state."""
        self._database.close()

    @property
    def base(self) -> Path:
        """The folder that the workspace lies in, with its recipes: places of outputs are relative to it."""
        return self.directory.parent

    @property
    def state(self) -> Path:
        """The file that holds what is remembered."""
        return self.directory / _STATE

    @property
    def logs(self) -> Path:
        """The folder for the logs of steps; made on first use, if the workspace is."""
        return self._folder("logs")

    @property
    def tmp(self) -> Path:
        """The folder for what lasts no longer than an action; made on first use, if the workspace is."""
        return self._folder("tmp")

    def staging(self, name: str) -> AbstractContextManager[Path]:
        """Open a new, empty directory for the length of a `with` block, and remove it afterwards. Raises StoreError."""
        return staging.staged(self.tmp, name)

    def sweep(self) -> None:
        """Remove the staging directories that killed processes left. Raises StoreError."""
        staging.sweep(self.directory / "tmp")

    def memory(self, configuration: Configuration) -> Memory:
        """What a configuration remembers here."""
        return Memory(self._database, configuration)

    def steps(self) -> list[tuple[Configuration, StepRecord]]:
        """How every step last ended, in every configuration. Raises StoreError."""
        return all_steps(self._database)

    def outputs(self) -> list[OutputRecord]:
        """Every output that was written and not removed, of all configurations. Raises StoreError."""
        return all_outputs(self._database)

    def measurement(self, subject: str) -> Measurement | None:
        """What the action key or step cost the last time, if it is known. Raises StoreError."""
        query = "SELECT subject, seconds, peak_rss_bytes, checksum FROM measurements WHERE subject = ?"
        rows = self._database.read(query, (subject,))
        return Measurement(*rows[0][1:]) if rows else None

    def record_measurement(self, subject: str, measurement: Measurement) -> None:
        """Remember what the action key or step cost. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO measurements (subject, seconds, peak_rss_bytes, checksum) VALUES (?, ?, ?, ?)",
            [self._database.sealed(subject, float(measurement.seconds), measurement.peak_rss_bytes)],
        )

    def fact(self, name: str) -> str | None:
        """The text that was last recorded under `name`. Raises StoreError."""
        rows = self._database.read("SELECT name, text, checksum FROM facts WHERE name = ?", (name,))
        return str(rows[0][1]) if rows else None

    def record_fact(self, name: str, text: str) -> None:
        """Remember `text` under `name`, for instance what was found of a content by its digest. Raises StoreError."""
        row = self._database.sealed(name, text)
        self._database.write("INSERT OR REPLACE INTO facts (name, text, checksum) VALUES (?, ?, ?)", [row])

    def facts(self, prefix: str) -> dict[str, str]:
        """All texts that are recorded under names that begin with `prefix`, by name. Raises StoreError."""
        query = "SELECT name, text, checksum FROM facts WHERE substr(name, 1, ?) = ? ORDER BY name"
        return dict(self._database.read(query, (len(prefix), prefix)))

    def forget_facts(self, names: Iterable[str]) -> None:
        """Forget what was recorded under the names: all of them, or on failure none. Raises StoreError."""
        self._database.write("DELETE FROM facts WHERE name = ?", ((name,) for name in names))

    @property
    def lasting(self) -> bool:
        """Whether this is the workspace on disk, and not one in memory that stands in for it."""
        return self._database.path is not None

    @property
    def unreadable(self) -> bool:
        """Whether something is remembered on disk that this user cannot read."""
        return not self.lasting and not self._database.copied and not self._database.is_foreign and self.state.exists()

    def problems(self) -> Iterator[Problem]:
        """Warn of a memory on disk that is not used."""
        state = shown_path(self.state)
        if self.unreadable:
            message = f"what was built here is not known: this user may not read {state}"
            yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")
        if self._database.is_foreign:
            aside = f", and was moved to {self.state.name}.damaged" if self.lasting else ""
            message = f"{state} is not used: this user's epbuild did not write it{aside}"
            hint = "Nothing is lost: everything is checked again, and results come from the store."
            yield Problem("EPB515", message, None, hint)

    def busy(self) -> bool:
        """Whether a build is at work here: it holds a staging directory or a lease. Raises StoreError."""
        return any_held(self.directory / "tmp") or any_held(self.directory / "leases")

    def _folder(self, name: str) -> Path:
        folder = self.directory / name
        if self.lasting:
            with explained(f"make {folder}", elsewhere=None):
                folder.mkdir(exist_ok=True)
        return folder


def _file(row: Sequence[Any]) -> tuple[StatKey, str]:
    _, size, mtime_ns, ctime_ns, inode, digest = row
    return StatKey(size, mtime_ns, ctime_ns, int(inode)), digest


def _refuse_links(directory: Path) -> None:
    """Raises StoreError for a folder of the workspace that is a link: what is written or deleted there would be elsewhere."""
    for folder in (directory, *(directory / name for name in _FOLDERS)):
        if folder.is_symlink():
            message = f"cannot use {folder}: it is a link, and epbuild writes and deletes files there"
            raise StoreError(Problem("EPB503", message, hint="Remove the link: epbuild creates a folder in its place."))


def _hide_from_git(directory: Path) -> None:
    """Have git take no notice of the folder, whatever the project's own `.gitignore` has. Raises OSError."""
    place = directory / ".gitignore"
    if not os.path.lexists(place):  # a link may lead anywhere
        from epbuild.core.atomic import write_file  # needed once in the life of a workspace

        write_file(place, "*\n")

"""Workspace: the `.epbuild` folder beside a recipe.

It contains the state of the recipe's builds, and temporary folders. The state can be computed again: losing the folder costs time, but
never an artifact. A checkout may contain a workspace, so only data that this user's epbuild wrote is trusted. Links in the folder are never
followed for writing or deleting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from epbuild.cache import staging
from epbuild.cache.database import Database
from epbuild.cache.errors import translate_os_errors
from epbuild.cache.leases import is_any_held
from epbuild.cache.location import ensure_workspace_key, read_workspace_key
from epbuild.cache.state import (
    TABLES,
    VERSION,
    Configuration,
    FileMemory,
    Measurement,
    Memory,
    OutputRecord,
    StepRecord,
    list_all_outputs,
    list_all_steps,
)
from epbuild.core.defaults import DEFAULT_RECIPE
from epbuild.core.errors import Problem, StoreError
from epbuild.core.host import is_windows
from epbuild.core.shown import format_path

REMOTE_MODEL = "remote "
"""Prefix of the names under which texts about fetched models are recorded. Garbage collection keeps the files of these models."""
_STATE = "state.sqlite"
_FOLDERS = ("tmp", "logs", "leases", "reports", "rebuilt")
_MAX_STATE_BYTES = 504
"""Maximum length of a path that SQLite can open on Linux: 512 bytes, minus the suffix of its journal."""


class Workspace:
    """Workspace in the folder `directory`. Any number of threads and processes may use it concurrently."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.directory = directory
        self.files = FileMemory(database, directory.parent)
        self._database = database

    @classmethod
    def open(cls, directory: Path, *, create: bool = True) -> Workspace:
        """Open the workspace, and create it if it is missing.

        If `create` is false, nothing is created: a workspace in memory replaces a workspace that is missing, read-only or another user's.
        The workspace in memory starts as a copy of a read-only workspace, and is otherwise empty. Raises StoreError if the folder
        cannot be created, if its state cannot be used, or if the path is too long.
        """
        directory = directory.absolute()
        size = len(os.fsencode(directory / _STATE))
        if size > _MAX_STATE_BYTES and not is_windows():
            message = f"the path of the state file {directory.name}/{_STATE} in this folder is too long: {size} bytes"
            hint = f"Move the recipe to a folder with a shorter path: SQLite supports at most {_MAX_STATE_BYTES} bytes."
            raise StoreError(Problem("EPB516", message, directory.parent, hint))
        _refuse_links(directory)
        if create:
            with translate_os_errors("create {}", directory, elsewhere=None):
                directory.mkdir(parents=True, exist_ok=True)
                _hide_from_git(directory)
            return cls(directory, Database(directory / _STATE, TABLES, VERSION, ensure_workspace_key()))
        path, key = directory / _STATE, read_workspace_key()
        is_readable = os.access(path, os.R_OK)
        is_writable = os.access(path, os.W_OK) and os.access(directory, os.W_OK | os.X_OK)
        opened = path if is_readable and is_writable else None
        copied = path if is_readable and not is_writable else None
        # Without a key, no state file can have been written by this user.
        key = key or os.urandom(32)
        return cls(directory, Database(opened, TABLES, VERSION, key, copied=copied, create=False))

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the state file."""
        self._database.close()

    @property
    def base(self) -> Path:
        """Folder that contains the workspace and the recipes. Places of outputs are relative to this folder."""
        return self.directory.parent

    @property
    def state(self) -> Path:
        """Path of the state file."""
        return self.directory / _STATE

    @property
    def logs(self) -> Path:
        """Folder of the logs of steps, created on first use if the workspace is on disk."""
        return self._create_folder("logs")

    @property
    def tmp(self) -> Path:
        """Folder of temporary files of actions, created on first use if the workspace is on disk."""
        return self._create_folder("tmp")

    def staging(self, name: str) -> AbstractContextManager[Path]:
        """Return a context that yields a new, empty directory and removes it afterwards. Raises StoreError."""
        return staging.staged(self.tmp, name)

    def sweep(self) -> None:
        """Remove the staging directories of killed processes. Raises StoreError."""
        staging.sweep(self.directory / "tmp")

    def has_own_staging(self) -> bool:
        """Return whether staging directories of this process exist, for example because another program uses their files."""
        return any((self.directory / "tmp").glob(f"*-{os.getpid()}-*"))

    def memory(self, configuration: Configuration) -> Memory:
        """Return the memory of a configuration."""
        return Memory(self._database, configuration)

    def steps(self) -> list[tuple[Configuration, StepRecord]]:
        """Return the latest outcome of every step in every configuration. Raises StoreError."""
        return list_all_steps(self._database)

    def outputs(self) -> list[OutputRecord]:
        """Return every output of all configurations that has not been removed. Raises StoreError."""
        return list_all_outputs(self._database)

    def measurement(self, subject: str) -> Measurement | None:
        """Return the cost of the last run of an action key or step, or None if no cost is recorded. Raises StoreError."""
        query = "SELECT subject, seconds, peak_rss_bytes, checksum FROM measurements WHERE subject = ?"
        rows = self._database.read(query, (subject,))
        return Measurement(*rows[0][1:]) if rows else None

    def record_measurement(self, subject: str, measurement: Measurement) -> None:
        """Record the cost of `subject`, which is an action key or a step. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO measurements (subject, seconds, peak_rss_bytes, checksum) VALUES (?, ?, ?, ?)",
            [self._database.seal_row(subject, float(measurement.seconds), measurement.peak_rss_bytes)],
        )

    def fact(self, name: str) -> str | None:
        """Return the text that was last recorded under `name`, or None if there is no text. Raises StoreError."""
        rows = self._database.read("SELECT name, text, checksum FROM facts WHERE name = ?", (name,))
        return str(rows[0][1]) if rows else None

    def record_fact(self, name: str, text: str) -> None:
        """Record `text` under `name`. For example, `name` is the digest of a file and `text` one of its properties. Raises StoreError."""
        row = self._database.seal_row(name, text)
        self._database.write("INSERT OR REPLACE INTO facts (name, text, checksum) VALUES (?, ?, ?)", [row])

    def facts(self, prefix: str) -> dict[str, str]:
        """Return the texts of all names that begin with `prefix`, by name. Raises StoreError."""
        query = "SELECT name, text, checksum FROM facts WHERE substr(name, 1, ?) = ? ORDER BY name"
        return dict(self._database.read(query, (len(prefix), prefix)))

    def forget_facts(self, names: Iterable[str]) -> None:
        """Forget the texts under `names` in one transaction. Raises StoreError."""
        self._database.write("DELETE FROM facts WHERE name = ?", ((name,) for name in names))

    @property
    def is_on_disk(self) -> bool:
        """True if the workspace is on disk, not in memory."""
        return self._database.path is not None

    @property
    def is_unreadable(self) -> bool:
        """True if a state file exists on disk that this user cannot read."""
        return not self.is_on_disk and not self._database.copied and not self._database.is_foreign and self.state.exists()

    def problems(self) -> Iterator[Problem]:
        """Yield a warning if the state file on disk is unreadable, or is ignored."""
        state = format_path(self.state)
        if self.is_unreadable:
            message = f"cannot determine what was built here: this user has no permission to read {state}"
            hint = "Run the command as the owner of the workspace, or get permission to read the file."
            yield Problem("EPB513", message, None, hint)
        if self._database.is_held and not self._database.is_foreign:
            message = f"{state} is ignored because it is damaged and another program uses it"
            hint = "Close the program. Until then, epbuild checks all steps again and restores their results from the store."
            yield Problem("EPB507", message, None, hint)
        if self._database.is_foreign:
            is_moved = self.is_on_disk and not self._database.is_held
            aside = f"; it was moved to {self.state.name}.damaged" if is_moved else ""
            message = f"{state} is ignored because it belongs to another user or to another cache folder{aside}"
            hint = "No result is lost: epbuild checks all steps again and restores their results from the store."
            yield Problem("EPB515", message, None, hint)

    def is_busy(self) -> bool:
        """Return whether a running build has locked a staging directory or a lease of this workspace. Raises StoreError."""
        return is_any_held(self.directory / "tmp") or is_any_held(self.directory / "leases")

    def _create_folder(self, name: str) -> Path:
        folder = self.directory / name
        if self.is_on_disk:
            with translate_os_errors("create {}", folder, elsewhere=None):
                folder.mkdir(exist_ok=True)
        return folder


def _refuse_links(directory: Path) -> None:
    """Raise StoreError if a folder of the workspace is a link, since epbuild would then write and delete files elsewhere."""
    for folder in (directory, *(directory / name for name in _FOLDERS)):
        if folder.is_symlink():
            message = f"cannot use {format_path(folder)}: it is a link, and epbuild writes and deletes files there"
            raise StoreError(Problem("EPB503", message, hint="Remove the link: epbuild creates a folder in its place."))


def _hide_from_git(directory: Path) -> None:
    """Make git ignore the folder, regardless of the project's `.gitignore`. Raises OSError."""
    path = directory / ".gitignore"
    if not os.path.lexists(path):  # not `exists`: a broken link must not be followed
        from epbuild.core.atomic import write_file  # imported here, as it is needed only once per workspace

        write_file(path, "*\n")


def get_action_name(action: str, recipe: str) -> str:
    """Return a name for the action that is unique among all recipes in the folder."""
    # Names in recipes never contain '+', so the result is unique.
    return action if recipe == DEFAULT_RECIPE else f"{action}+{recipe}"


def get_log_path(workspace: Path, action: str, recipe: str = DEFAULT_RECIPE) -> Path:
    """Return the path of the log that an action's last run in a workspace wrote."""
    return workspace / "logs" / f"{re.sub(r'[^A-Za-z0-9._-]', '+', get_action_name(action, recipe))}.log"

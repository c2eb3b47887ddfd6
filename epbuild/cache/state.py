"""State of a workspace: digests of files, costs, outcomes of steps, and outputs.

A configuration is a recipe file with its settings and variables. Steps are stored per configuration, since different configurations can
have different steps with the same id. Examples are two recipes in one folder, and one recipe with two values of `--set`. The result of an
action is identified by its key alone, in all configurations.

An output is identified by its path. Its owners are the configuration that wrote it last, and every configuration that has since found an
equal output at that path. An output may be removed only when no owner asks for it anymore.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.cache.database import Damage, Database, encode_values
from epbuild.cache.digests import StatKey
from epbuild.core.canonical import encode_canonical, parse_json
from epbuild.core.digest import hash_bytes
from epbuild.core.safepath import is_anchored, is_outside

if TYPE_CHECKING:
    import sqlite3

VERSION = 5
TABLES = (
    """CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
       inode TEXT NOT NULL, digest TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE measurements (subject TEXT PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER,
       checksum INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE steps (step TEXT, action_key TEXT NOT NULL, key_document TEXT NOT NULL, result TEXT NOT NULL, finished REAL NOT NULL,
       configuration TEXT, recipe TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (step, configuration)) WITHOUT ROWID""",
    "CREATE INDEX steps_by_key ON steps (action_key)",
    """CREATE TABLE outputs (place TEXT PRIMARY KEY, step TEXT NOT NULL, action_key TEXT NOT NULL, results TEXT NOT NULL,
       files TEXT NOT NULL, owners TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
)
"""SQL statements that create the tables. The last column of each table is the checksum of the row."""

_FILES = "SELECT path, size, mtime_ns, ctime_ns, inode, digest, checksum FROM files"
_STEPS = "SELECT step, action_key, key_document, result, finished, configuration, recipe, checksum FROM steps"
_OUTPUTS = "SELECT place, step, action_key, results, files, owners, checksum FROM outputs"
_NAMES_PER_QUERY = 500
"""Maximum number of files, steps or places in one query. SQLite allows at least 999 parameters."""
_MAX_CONFIGURATIONS = 20
"""Maximum number of configurations per recipe whose steps are kept although they own no output."""


class Configuration(Struct, frozen=True):
    """Source of a plan: the name of a recipe file in the workspace's folder, and a digest of its settings and variables."""

    recipe: str
    ident: str

    @classmethod
    def of(cls, recipe: Path, settings: Iterable[str], variables: Mapping[str, str | None]) -> Configuration:
        """Return the configuration of a recipe file with `settings` and `variables`. If a name is set twice, the last setting counts.

        Only a digest of settings and variables is stored, as they may contain secrets.
        """
        last = dict(setting.partition("=")[::2] for setting in settings)
        document = json.dumps([recipe.name, last, dict(variables)], sort_keys=True)
        return cls(recipe.name, hash_bytes(document.encode("ascii")))


UNKNOWN = Configuration("", "")
"""Placeholder for surveys, which have no configuration."""


class StepRecord(Struct, frozen=True):
    """Latest outcome of a step: its action key, key document and result, and the time when it finished, in Unix seconds."""

    step: str
    action_key: str
    key_document: Mapping[str, Any]
    result: Mapping[str, Any]
    finished: float = field(default_factory=time.time)


class OutputRecord(Struct, frozen=True):
    """Output at `place`, a POSIX path relative to the workspace's folder."""

    place: str
    step: str
    action_key: str
    results: tuple[str, ...]
    """Action keys of the results that the output contains."""
    files: Mapping[str, Mapping[str, Any]]
    """The `digest` and the `size` in bytes of each file, by its POSIX path below the output."""
    owners: tuple[Configuration, ...] = ()
    """The configuration that wrote the output, followed by other configurations that would have written an equal output."""


class Memory:
    """Remembered steps and outputs of one configuration in a workspace. Thread-safe."""

    def __init__(self, database: Database, configuration: Configuration) -> None:
        self.configuration = configuration
        self._database = database

    @property
    def is_empty(self) -> bool:
        """True if nothing is remembered in any configuration. Raises StoreError."""
        [[known]] = self._database.select("SELECT EXISTS (SELECT * FROM steps) OR EXISTS (SELECT * FROM outputs)")
        return not known

    def step(self, step: str) -> StepRecord | None:
        """Return the latest outcome of a step in this configuration, or None if none is recorded. Raises StoreError."""
        query = f"{_STEPS} WHERE configuration = ? AND step = ?"
        found = self._database.read(query, (self.configuration.ident, step))
        return _parse_step(found[0])[1] if found else None

    def previous(self, step: str) -> StepRecord | None:
        """Return the latest outcome of a step in this configuration, or else in the recipe's latest configuration.

        Raises StoreError.
        """
        query = f"{_STEPS} WHERE step = ? AND recipe = ? ORDER BY configuration != ?, finished DESC LIMIT 1"
        found = self._database.read(query, (step, _escape_name(self.configuration.recipe), self.configuration.ident))
        return _parse_step(found[0])[1] if found else None

    def keys(self, steps: Iterable[str]) -> dict[str, str]:
        """Return the last action key of each step in this configuration, without verifying the rows. Raises StoreError."""
        found = dict[str, str]()
        for some, marks in _split_into_chunks(steps):
            query = f"SELECT step, action_key FROM steps WHERE configuration = ? AND step IN ({marks})"  # noqa: S608 - marks
            found.update(self._database.select(query, (self.configuration.ident, *some)))
        return found

    def read_verified_keys(self, steps: Iterable[str]) -> dict[str, str]:
        """Return the last action key of each step, like `keys`, but verify the rows. Raises StoreError."""
        found = dict[str, str]()
        for some, marks in _split_into_chunks(steps):
            query = f"{_STEPS} WHERE configuration = ? AND step IN ({marks})"
            found.update({row[0]: row[1] for row in self._database.read(query, (self.configuration.ident, *some))})
        return found

    def read_owned_keys(self) -> dict[str, str]:
        """Return the action key of each output that this configuration owns, by place. Raises StoreError."""
        mine = json.dumps([self.configuration.recipe, self.configuration.ident])
        rows = self._database.select("SELECT place, action_key FROM outputs WHERE instr(owners, ?)", (mine,))
        return dict(rows)

    def result(self, action_key: str) -> Mapping[str, Any] | None:
        """Return the latest result of an action in any configuration, or None if none is recorded. Raises StoreError."""
        query = f"{_STEPS} WHERE action_key = ? ORDER BY finished DESC LIMIT 1"
        found = self._database.read(query, (action_key,))
        return _parse_step(found[0])[1].result if found else None

    def record_steps(self, records: Iterable[StepRecord]) -> None:
        """Record the outcomes of steps in one transaction, replacing earlier outcomes. Raises StoreError."""
        added = [self._build_row(record) for record in records]
        self._database.change(lambda connection: self._put_steps(connection, added))

    def forget_steps(self, steps: Iterable[str]) -> None:
        """Forget steps of this configuration in one transaction. Raises StoreError."""
        self._database.write(
            "DELETE FROM steps WHERE configuration = ? AND step = ?", [(self.configuration.ident, step) for step in steps]
        )

    def forget_superseded(self) -> None:
        """Forget the steps of this recipe's oldest configurations. A configuration that owns an output is kept. Raises StoreError."""
        query = "SELECT configuration FROM steps WHERE recipe = ? GROUP BY configuration ORDER BY max(finished) DESC LIMIT -1 OFFSET ?"

        def forget(connection: sqlite3.Connection) -> None:
            # This query returns rows without a checksum, so they cannot be verified.
            old = connection.execute(query, (_escape_name(self.configuration.recipe), _MAX_CONFIGURATIONS)).fetchall()
            owners = (
                {owner.ident for output in _read_outputs(self._database, connection) for owner in output.owners} if old else set()
            )
            gone = [(ident,) for (ident,) in old if ident not in owners and ident != self.configuration.ident]
            connection.executemany("DELETE FROM steps WHERE configuration = ?", gone)

        self._database.change(forget)

    def output(self, place: str) -> OutputRecord | None:
        """Return the output that any configuration last wrote to `place`, or None if there is no output. Raises StoreError."""
        return self._database.query(lambda connection: self._read_output_at(connection, place))

    def read_outputs_at(self, places: Iterable[str]) -> dict[str, OutputRecord]:
        """Return the output at each place that has one, as `output` does. Raises StoreError."""
        found = dict[str, OutputRecord]()
        for some, marks in _split_into_chunks(places):
            found_here = partial(self._query_outputs, query=f"{_OUTPUTS} WHERE place IN ({marks})", places=some)
            found.update({output.place: output for output in self._database.query(found_here)})
        return found

    def record_output(self, output: OutputRecord, record: StepRecord, settled: str | None = None) -> None:
        """Record that this configuration wrote `output`, and record the outcome of its step.

        This configuration becomes the only owner of the output. If `settled` is given, the text that the workspace recorded under this
        name is forgotten (see `Workspace.record_fact`). Raises StoreError.
        """
        row = self._build_row(record)

        def put(connection: sqlite3.Connection) -> None:
            self._put_steps(connection, [row])
            self._put_output(connection, replace(output, owners=(self.configuration,)))
            if settled is not None:
                connection.execute("DELETE FROM facts WHERE name = ?", encode_values((settled,)))

        self._database.change(put)

    def adopt(self, found: Mapping[str, StepRecord]) -> None:
        """Add this configuration to the owners of existing outputs, and record the outcomes of their steps.

        `found` has the step record of each output, by place. A place where another output was written in the meantime is skipped. Raises
        StoreError.
        """
        added = {place: (record.action_key, self._build_row(record)) for place, record in found.items()}

        def put(connection: sqlite3.Connection) -> None:
            for place, (action_key, row) in added.items():
                output = self._read_output_at(connection, place)
                if output is not None and output.action_key == action_key:
                    self._put_steps(connection, [row])
                    if self.configuration not in output.owners:
                        self._put_output(connection, replace(output, owners=_add_owner(output.owners, self.configuration)))

        self._database.change(put)

    def release(self, place: str, owners: Collection[Configuration]) -> None:
        """Remove `owners` from the owners of the output at `place`, and forget an output without owners. Raises StoreError."""

        def put(connection: sqlite3.Connection) -> None:
            output = self._read_output_at(connection, place)
            if output is None:
                return
            left = tuple(owner for owner in output.owners if owner not in owners)
            if left:
                self._put_output(connection, replace(output, owners=left))
            else:
                connection.execute("DELETE FROM outputs WHERE place = ?", (place,))

        self._database.change(put)

    def _build_row(self, record: StepRecord) -> tuple[object, ...]:
        """Return the row of `steps` for a record. Raises ValueError or TypeError if the record is not JSON."""
        return self._database.seal_row(
            record.step,
            record.action_key,
            encode_canonical(dict(record.key_document)),
            encode_canonical(record.result),
            float(record.finished),
            self.configuration.ident,
            _escape_name(self.configuration.recipe),
        )

    def _put_steps(self, connection: sqlite3.Connection, added: Iterable[tuple[object, ...]]) -> None:
        connection.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)", added)

    def _put_output(self, connection: sqlite3.Connection, output: OutputRecord) -> None:
        """Write the record of an output, replacing an earlier one."""
        owners = json.dumps([[owner.recipe, owner.ident] for owner in output.owners])
        row = self._database.seal_row(
            output.place, output.step, output.action_key, json.dumps(output.results), encode_canonical(output.files), owners
        )
        connection.execute("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _read_output_at(self, connection: sqlite3.Connection, place: str) -> OutputRecord | None:
        return next(iter(self._query_outputs(connection, f"{_OUTPUTS} WHERE place = ?", (place,))), None)

    def _query_outputs(self, connection: sqlite3.Connection, query: str, places: Sequence[str]) -> list[OutputRecord]:
        return [_parse_output(row) for row in self._database.read_rows(connection, query, places)]


class Measurement(Struct, frozen=True):
    """Cost of the last run of an action or a step."""

    seconds: float
    peak_rss_bytes: int | None = None


class FileMemory:
    """`StatMemory` of a workspace: digests of files, with the stat of each file."""

    def __init__(self, database: Database, root: Path) -> None:
        self._database = database
        self._root = f"{root}{os.sep}"

    def get_many(self, paths: Iterable[str]) -> dict[str, tuple[StatKey, str]]:
        """Return the latest stat key and digest of each absolute path that has them. Raises StoreError."""
        names = {self._make_relative(path): path for path in paths}
        found = dict[str, tuple[StatKey, str]]()
        for some, marks in _split_into_chunks(names):
            rows = self._database.read(f"{_FILES} WHERE path IN ({marks})", some)
            found.update({names[row[0]]: _parse_file(row) for row in rows if row[0] in names})
        return found

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        """Record the stat key and the digest of each absolute path. Raises StoreError."""
        self._database.write(
            "INSERT OR REPLACE INTO files (path, size, mtime_ns, ctime_ns, inode, digest, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)",
            # Inode numbers on Windows are up to 128 bits, SQLite's integers 64.
            (
                self._database.seal_row(self._make_relative(path), key.size, key.mtime_ns, key.ctime_ns, str(key.inode), digest)
                for path, (key, digest) in entries.items()
            ),
        )

    def _make_relative(self, path: str) -> str:
        # Relative inside the workspace, so that a moved checkout keeps its digests.
        return path.removeprefix(self._root)


def list_all_steps(database: Database) -> list[tuple[Configuration, StepRecord]]:
    """Return the latest outcome of every step in every configuration. Raises StoreError."""
    return [_parse_step(row) for row in database.read(f"{_STEPS} ORDER BY configuration, step")]


def list_all_outputs(database: Database) -> list[OutputRecord]:
    """Return every output that has not been removed. Raises StoreError."""
    return database.query(lambda connection: _read_outputs(database, connection))


def _read_outputs(database: Database, connection: sqlite3.Connection) -> list[OutputRecord]:
    return [_parse_output(row) for row in database.read_rows(connection, f"{_OUTPUTS} ORDER BY place")]


def _parse_output(row: Sequence[Any]) -> OutputRecord:
    """Return the record that a row of the database contains.

    Raises Damage for a path outside the workspace's folder, since epbuild may delete the files at recorded paths.
    """
    place, step, action_key, results, text, owners = row
    files = parse_json(text)
    if not all(map(_is_inside, (place, *files))):
        raise Damage
    owned = tuple(Configuration(recipe, ident) for recipe, ident in parse_json(owners))
    return OutputRecord(place, step, action_key, tuple(parse_json(results)), files, owned)


def _is_inside(path: str) -> bool:
    return not is_anchored(path) and (".." not in path or not is_outside(path))  # few paths need the second check


def _parse_step(row: Sequence[Any]) -> tuple[Configuration, StepRecord]:
    step, action_key, key_document, result, finished, ident, recipe = row
    record = StepRecord(step, action_key, parse_json(key_document), parse_json(result), finished)
    return Configuration(parse_json(f'"{recipe}"'), ident), record


def _split_into_chunks(names: Iterable[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the names for each query, with the SQL placeholders for these names."""
    all_names = list(names)
    for start in range(0, len(all_names), _NAMES_PER_QUERY):
        chunk = all_names[start : start + _NAMES_PER_QUERY]
        yield chunk, ", ".join("?" * len(chunk))


def _add_owner(owners: Sequence[Configuration], owner: Configuration) -> tuple[Configuration, ...]:
    """Return the owners with `owner` added.

    To bound the number of owners, only the latest configurations of the recipe of `owner` are kept.
    """
    same = [other for other in owners if other.recipe == owner.recipe]
    dropped = same[: max(0, len(same) + 1 - _MAX_CONFIGURATIONS)]
    return (*(other for other in owners if other not in dropped), owner)


def _escape_name(text: str) -> str:
    """Return a file name in a form that SQLite can store, even if the name has undecodable bytes."""
    return json.dumps(text)[1:-1]


def _parse_file(row: Sequence[Any]) -> tuple[StatKey, str]:
    _, size, mtime_ns, ctime_ns, inode, digest = row
    return StatKey(size, mtime_ns, ctime_ns, int(inode)), digest

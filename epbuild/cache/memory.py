"""Workspace memory of builds, per configuration.

How steps ended, and which outputs lie where.

A configuration is a recipe file and what it was read with. Each has steps of its own, since two recipes in one folder, or one recipe with
two `--set`s, have different steps under one id. What an action came to is known by its key alone, whichever configuration asked for it.

An output is known by where it lies: it belongs to the configuration that wrote it last, and to every other one that has since found
there what it would have written itself. Only when none of them asks for it any more may it be removed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from epbuild.cache.database import Damage, Database, storable
from epbuild.core.canonical import canonical_json
from epbuild.core.digest import digest_of
from epbuild.core.safepath import is_anchored, leaves

if TYPE_CHECKING:
    import sqlite3

MEMORY_TABLES = (
    """CREATE TABLE steps (step TEXT, action_key TEXT NOT NULL, key_document TEXT NOT NULL, result TEXT NOT NULL, finished REAL NOT NULL,
       configuration TEXT, recipe TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (step, configuration)) WITHOUT ROWID""",
    "CREATE INDEX steps_by_key ON steps (action_key)",
    """CREATE TABLE outputs (place TEXT PRIMARY KEY, step TEXT NOT NULL, action_key TEXT NOT NULL, results TEXT NOT NULL,
       files TEXT NOT NULL, owners TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
)
"""The tables; the last column of each is its rows' checksum."""

_STEPS = "SELECT step, action_key, key_document, result, finished, configuration, recipe, checksum FROM steps"
_OUTPUTS = "SELECT place, step, action_key, results, files, owners, checksum FROM outputs"
_ASKED_AT_ONCE = 500
"""How many steps are asked for in one query, which may have 999 parameters everywhere."""
_MOST_CONFIGURATIONS = 20
"""Of one recipe: of so many is remembered what they built last, even if none of their outputs is in place."""


class Configuration(Struct, frozen=True):
    """What a plan was made from: a recipe file, by its name in the workspace's folder, and what it was read with, by a digest."""

    recipe: str
    ident: str

    @classmethod
    def of(cls, recipe: Path, settings: Iterable[str], variables: Mapping[str, str | None]) -> Configuration:
        """The configuration of a recipe file that is read with `settings`, of which the last for a name counts, and `variables`.

        Neither is kept but as a digest: there may be secrets among them.
        """
        last = dict(setting.partition("=")[::2] for setting in settings)
        document = json.dumps([recipe.name, last, dict(variables)], sort_keys=True)
        return cls(recipe.name, digest_of(document.encode("ascii")))


UNKNOWN = Configuration("", "")
"""Configuration of a survey that was made for none."""


class StepRecord(Struct, frozen=True):
    """How a step last ended here: its action key, the document behind the key, its result; `finished` in Unix seconds."""

    step: str
    action_key: str
    key_document: Mapping[str, Any]
    result: Mapping[str, Any]
    finished: float


class OutputRecord(Struct, frozen=True):
    """An output that was written to `place`, a POSIX path as seen from the workspace's folder."""

    place: str
    step: str
    action_key: str
    results: tuple[str, ...]
    """The action keys of the results that it was made of."""
    files: Mapping[str, Mapping[str, Any]]
    """The `digest` and the `size` in bytes of each file, by its POSIX path below the output's root."""
    owners: tuple[Configuration, ...] = ()
    """The configuration that wrote it first, then those that would have written the same."""


class Memory:
    """What one configuration remembers in a workspace; any number of threads may use it at once."""

    def __init__(self, database: Database, configuration: Configuration) -> None:
        self.configuration = configuration
        self._database = database

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever built here that is remembered, in any configuration. Raises StoreError."""
        [[known]] = self._database.select("SELECT EXISTS (SELECT * FROM steps) OR EXISTS (SELECT * FROM outputs)")
        return not known

    def step(self, step: str) -> StepRecord | None:
        """How the step last ended in this configuration, if it ever did. Raises StoreError."""
        query = f"{_STEPS} WHERE configuration = ? AND step = ?"
        found = self._database.read(query, (self.configuration.ident, step))
        return _step(found[0])[1] if found else None

    def previous(self, step: str) -> StepRecord | None:
        """How the step last ended in this configuration, else in the latest of the same recipe. Raises StoreError."""
        query = f"{_STEPS} WHERE step = ? AND recipe = ? ORDER BY configuration != ?, finished DESC LIMIT 1"
        found = self._database.read(query, (step, _ascii(self.configuration.recipe), self.configuration.ident))
        return _step(found[0])[1] if found else None

    def keys(self, steps: Iterable[str]) -> dict[str, str]:
        """The action key with which each of the steps last ended in this configuration; a damaged row has another. Raises StoreError."""
        found, asked = dict[str, str](), list(steps)
        for start in range(0, len(asked), _ASKED_AT_ONCE):
            some = asked[start : start + _ASKED_AT_ONCE]
            query = f"SELECT step, action_key FROM steps WHERE configuration = ? AND step IN ({', '.join('?' * len(some))})"  # noqa: S608 - marks
            found.update(self._database.select(query, (self.configuration.ident, *some)))
        return found

    def owned(self) -> dict[str, str]:
        """The action key of each output that belongs to this configuration, by its place. Raises StoreError."""
        mine = json.dumps([self.configuration.recipe, self.configuration.ident])
        rows = self._database.select("SELECT place, action_key FROM outputs WHERE instr(owners, ?)", (mine,))
        return dict(rows)

    def result(self, action_key: str) -> Mapping[str, Any] | None:
        """What the action came to, in whatever configuration it was last done here. Raises StoreError."""
        query = f"{_STEPS} WHERE action_key = ? ORDER BY finished DESC LIMIT 1"
        found = self._database.read(query, (action_key,))
        return _step(found[0])[1].result if found else None

    def record_steps(self, records: Iterable[StepRecord]) -> None:
        """Remember how steps ended, in place of what was known: all of them, or on failure none. Raises StoreError."""
        added = [self._row(record) for record in records]
        self._database.change(lambda connection: self._put_steps(connection, added))

    def forget_steps(self, steps: Iterable[str]) -> None:
        """Forget how the steps ended in this configuration: all of them, or on failure none. Raises StoreError."""
        self._database.write(
            "DELETE FROM steps WHERE configuration = ? AND step = ?", [(self.configuration.ident, step) for step in steps]
        )

    def forget_superseded(self) -> None:
        """Forget the steps of this recipe's configurations that were not built for long and have no output in place. Raises StoreError."""
        query = "SELECT configuration FROM steps WHERE recipe = ? GROUP BY configuration ORDER BY max(finished) DESC LIMIT -1 OFFSET ?"

        def forget(connection: sqlite3.Connection) -> None:
            # An ident is all there is in a row: no checksum.
            old = connection.execute(query, (_ascii(self.configuration.recipe), _MOST_CONFIGURATIONS)).fetchall()
            owners = {owner.ident for output in _outputs(self._database, connection) for owner in output.owners} if old else set()
            gone = [(ident,) for (ident,) in old if ident not in owners and ident != self.configuration.ident]
            connection.executemany("DELETE FROM steps WHERE configuration = ?", gone)

        self._database.change(forget)

    def output(self, place: str) -> OutputRecord | None:
        """What was written to `place` the last time, by whichever configuration. Raises StoreError."""
        return self._database.query(lambda connection: self._output_at(connection, place))

    def outputs(self) -> list[OutputRecord]:
        """Every output that was written and not removed, of all configurations. Raises StoreError."""
        return all_outputs(self._database)

    def record_output(self, output: OutputRecord, record: StepRecord, settled: str | None = None) -> None:
        """Remember that this configuration wrote `output`, which then belongs to it alone, and how its step ended.

        The fact of the workspace that has been `settled` by that is forgotten. Raises StoreError.
        """
        row = self._row(record)

        def put(connection: sqlite3.Connection) -> None:
            self._put_steps(connection, [row])
            self._put_output(connection, replace(output, owners=(self.configuration,)))
            if settled is not None:
                connection.execute("DELETE FROM facts WHERE name = ?", storable((settled,)))

        self._database.change(put)

    def adopt(self, found: Mapping[str, StepRecord]) -> None:
        """Remember of places that what lies there is what this configuration would have written, by the steps' records.

        A place where something else was written in the meantime is left out. Raises StoreError.
        """
        added = {place: (record.action_key, self._row(record)) for place, record in found.items()}

        def put(connection: sqlite3.Connection) -> None:
            for place, (action_key, row) in added.items():
                output = self._output_at(connection, place)
                if output is not None and output.action_key == action_key:
                    self._put_steps(connection, [row])
                    if self.configuration not in output.owners:
                        self._put_output(connection, replace(output, owners=_with_owner(output.owners, self.configuration)))

        self._database.change(put)

    def release(self, place: str, owners: Collection[Configuration]) -> None:
        """Note that the output at `place` no longer belongs to `owners`; forget it, if it then belongs to none. Raises StoreError."""

        def put(connection: sqlite3.Connection) -> None:
            output = self._output_at(connection, place)
            if output is None:
                return
            left = tuple(owner for owner in output.owners if owner not in owners)
            if left:
                self._put_output(connection, replace(output, owners=left))
            else:
                connection.execute("DELETE FROM outputs WHERE place = ?", (place,))

        self._database.change(put)

    def _row(self, record: StepRecord) -> tuple[object, ...]:
        """Return the row of `steps` for a record. Raises ValueError or TypeError if the record is not JSON."""
        return self._database.sealed(
            record.step,
            record.action_key,
            canonical_json(record.key_document),
            canonical_json(record.result),
            float(record.finished),
            self.configuration.ident,
            _ascii(self.configuration.recipe),
        )

    def _put_steps(self, connection: sqlite3.Connection, added: Iterable[tuple[object, ...]]) -> None:
        connection.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)", added)

    def _put_output(self, connection: sqlite3.Connection, output: OutputRecord) -> None:
        """Put a record of an output in the place of the one that was there."""
        owners = json.dumps([[owner.recipe, owner.ident] for owner in output.owners])
        row = self._database.sealed(
            output.place, output.step, output.action_key, json.dumps(output.results), canonical_json(output.files), owners
        )
        connection.execute("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _output_at(self, connection: sqlite3.Connection, place: str) -> OutputRecord | None:
        found = self._database.rows(connection, f"{_OUTPUTS} WHERE place = ?", (place,))
        return _output(found[0]) if found else None


def all_steps(database: Database) -> list[tuple[Configuration, StepRecord]]:
    """How every step last ended in every configuration. Raises StoreError."""
    return [_step(row) for row in database.read(f"{_STEPS} ORDER BY configuration, step")]


def all_outputs(database: Database) -> list[OutputRecord]:
    """Return every output that was written and not removed. Raises StoreError."""
    return database.query(lambda connection: _outputs(database, connection))


def _outputs(database: Database, connection: sqlite3.Connection) -> list[OutputRecord]:
    return [_output(row) for row in database.rows(connection, f"{_OUTPUTS} ORDER BY place")]


def _output(row: Sequence[Any]) -> OutputRecord:
    """Return the record in a row. Raises Damage for a path that leaves its folder, since files are deleted by these paths."""
    place, step, action_key, results, text, owners = row
    files = json.loads(text)
    if not all(map(_stays, (place, *files))):
        raise Damage
    owned = tuple(Configuration(recipe, ident) for recipe, ident in json.loads(owners))
    return OutputRecord(place, step, action_key, tuple(json.loads(results)), files, owned)


def _stays(path: str) -> bool:
    return not is_anchored(path) and (".." not in path or not leaves(path))  # few paths need the second look


def _step(row: Sequence[Any]) -> tuple[Configuration, StepRecord]:
    step, action_key, key_document, result, finished, ident, recipe = row
    record = StepRecord(step, action_key, json.loads(key_document), json.loads(result), finished)
    return Configuration(json.loads(f'"{recipe}"'), ident), record


def _with_owner(owners: Sequence[Configuration], owner: Configuration) -> tuple[Configuration, ...]:
    """The owners and one more; of each recipe only the latest configurations count, since there may be any number."""
    same = [other for other in owners if other.recipe == owner.recipe]
    dropped = same[: max(0, len(same) + 1 - _MOST_CONFIGURATIONS)]
    return (*(other for other in owners if other not in dropped), owner)


def _ascii(text: str) -> str:
    """A file's name as SQLite takes it, whatever bytes it has."""
    return json.dumps(text)[1:-1]

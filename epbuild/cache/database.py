"""A SQLite file that only remembers.

When it is found damaged it is set aside, and an empty one takes its place.

Damage is what SQLite reports, and what the file should not hold: a row that is not as it was written (each has a checksum), other
tables, a schema of a version that no migration leads from. A file that this user may only read is copied into memory, and stays as it is.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epbuild.cache.errors import explained
from epbuild.core.errors import Problem, StoreError

if TYPE_CHECKING:
    import sqlite3

_BUSY_SECONDS = 30.0
_RETRY_SECONDS = 0.01

_Result = TypeVar("_Result")

Migration = Callable[["sqlite3.Connection"], None]
"""Turns the tables of one version of a schema into those of the next."""


class Damage(Exception):
    """What the file holds cannot be what was written to it."""

    def __str__(self) -> str:
        return "it does not hold what was written to it"


def sealed(*values: object) -> tuple[object, ...]:
    """A row with its checksum at its end, for a table whose last column is for that."""
    stored = storable(values)
    return (*stored, _checksum(stored))


def unsealed(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row without its checksum. Raises Damage when the row is not as it was written."""
    *values, checksum = row
    try:
        if _checksum(values) == checksum:
            return tuple(values)
    except TypeError:  # bytes, where there was text or a number
        pass
    raise Damage


class Database:
    """One connection, for all threads of this process; `path` is None for one in memory, which nobody else sees."""

    def __init__(
        self,
        path: Path | None,
        schema: Sequence[str],
        version: int,
        migrations: Mapping[int, Migration] | None = None,
        *,
        copied: Path | None = None,
    ) -> None:
        """Open the file, and make it and its tables where they are not.

        `migrations` lead from the version that each is under to the next one. With no path but one to be `copied`, what that file holds
        is copied into memory. Raises StoreError.
        """
        self.path = path
        self._copied = copied
        self._schema = schema
        self._version = version
        self._migrations = migrations or {}
        self._lock = threading.RLock()
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._attempt(lambda connection: None)

    @property
    def copied(self) -> bool:
        """Whether this is a copy of a file, in memory. It is not where the file turned out damaged."""
        return self._copied is not None

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of the query, which ends with their checksums, less these. Raises StoreError."""
        return self._attempt(lambda connection: rows(connection, query, parameters))

    def select(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of the query for some columns, which nobody checks against the checksum. Raises StoreError."""
        return self._attempt(lambda connection: connection.execute(query, storable(parameters)).fetchall())

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run the statement for each row, all in one transaction. Raises StoreError."""
        parameters = [storable(row) for row in rows]
        self.change(lambda connection: connection.executemany(statement, parameters))

    def change(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Do `work`, which may be tried again, in one transaction: no other process writes meanwhile. Raises StoreError."""
        return self._attempt(lambda connection: _in_transaction(connection, lambda: work(connection)))

    def close(self) -> None:
        """Close the connection; using the database afterwards opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _attempt(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        import sqlite3

        with self._lock:
            try:
                return work(self._connected())
            except sqlite3.DatabaseError as error:
                if not _damaged(error):
                    raise self._failure(error) from error
            except Damage:
                pass
            self._set_aside()
            try:
                return work(self._connected())
            except (sqlite3.DatabaseError, Damage) as error:
                raise self._failure(error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            import sqlite3

            # Before the file is opened: if it proves damaged, only this very file may be set aside.
            self._identity = _identity(self.path)
            # The lock above keeps threads apart. No isolation level: transactions begin where this module begins them.
            connection = sqlite3.connect(
                self.path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                if self._copied is not None and not _copy(self._copied, connection):
                    self._copied = None
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._identity = self._identity or _identity(self.path)
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self.path is not None:
            _use_write_ahead_log(connection)
            # A power cut may lose the last transactions, never the file; that is enough for a memory.
            connection.execute("PRAGMA synchronous=NORMAL")

        def make_tables() -> None:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found > self._version:
                problem = Problem(
                    "EPB506",
                    f"{self.path} was written by a newer epbuild (its version is {found}; this one knows {self._version})",
                    hint="Use the newer epbuild, or remove the file: what it remembers is found again.",
                )
                raise StoreError(problem)
            if found == self._version:
                return
            if found:
                self._migrate(connection, found)
            else:
                for statement in self._schema:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self._version}")

        _in_transaction(connection, make_tables)

    def _migrate(self, connection: sqlite3.Connection, found: int) -> None:
        for version in range(found, self._version):
            if version not in self._migrations:
                raise Damage
            self._migrations[version](connection)

    def _set_aside(self) -> None:
        from filelock import FileLock

        self.close()
        self._copied = None
        if self.path is None:
            return
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        with explained(f"set the damaged {self.path} aside", code="EPB507", elsewhere=None), lock:
            # Another process may have been here first; its new file is not the damaged one.
            if _identity(self.path) == self._identity:
                for suffix in ("", "-wal", "-shm"):
                    part = self.path.with_name(f"{self.path.name}{suffix}")
                    with suppress(FileNotFoundError):
                        part.replace(self.path.with_name(f"{self.path.name}.damaged{suffix}"))

    def _failure(self, error: Exception) -> StoreError:
        problem = Problem(
            "EPB507",
            f"cannot use {self.path or 'the state in memory'}: {error}",
            hint="Check that its directory can be written to and has free space.",
        )
        return StoreError(problem)


def rows(connection: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of the query, which ends with their checksums, less these. Raises Damage when one is not as it was written."""
    return [unsealed(row) for row in connection.execute(query, storable(parameters))]


def storable(values: Sequence[object]) -> tuple[object, ...]:
    """Values as SQLite takes them: it has no text for what stands for the bytes of a name that is no UTF-8 (PEP 383)."""
    return tuple(
        [
            value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) and not value.isascii() else value
            for value in values
        ]
    )


def _checksum(values: Sequence[object]) -> int:
    return zlib.crc32(f"[{', '.join([_column(value) for value in values])}]".encode("ascii"))


def _column(value: Any) -> str:
    """What `json.dumps` gives, which takes longer for the texts and numbers that most rows have."""
    kind = type(value)
    return encode_basestring_ascii(value) if kind is str else str(value) if kind is int else json.dumps(value)


def _copy(path: Path, connection: sqlite3.Connection) -> bool:
    """Copy the file into an empty database, and return whether that worked."""
    import sqlite3

    # Beside a build, SQLite reads with the help of the build's `-shm`; where there is none, nobody has the file open, and it can be read
    # as a file that does not change.
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)) as source:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(connection)
            return True
    return False


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], _Result]) -> _Result:
    # IMMEDIATE: a transaction that begins by reading cannot wait for the write lock later, it fails at once.
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    import sqlite3

    deadline = time.monotonic() + _BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            # Unlike others, this statement does not wait for the processes that are opening the file as well.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _damaged(error: sqlite3.DatabaseError) -> bool:
    import sqlite3

    match _code(error):
        case None:  # of the module itself: text that is not UTF-8
            return isinstance(error, sqlite3.OperationalError)
        case sqlite3.SQLITE_ERROR:  # other tables than those of the schema
            return str(error).startswith(("no such table", "no such column", "table "))
        case code:
            return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _code(error: sqlite3.Error) -> int | None:
    # The low byte is the primary code; what is above it is more of the same. Errors of the module itself have none.
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF

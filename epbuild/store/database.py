"""A SQLite file that only remembers: when it turns out damaged it is set aside, and an empty one takes its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epbuild.errors import Problem, StoreError
from epbuild.store.failures import explained

if TYPE_CHECKING:
    import sqlite3

_BUSY_SECONDS = 30.0
_RETRY_SECONDS = 0.01

_Result = TypeVar("_Result")


class Database:
    """One connection, for all threads of this process; `path` is None for one in memory, which nobody else sees."""

    def __init__(self, path: Path | None, schema: Sequence[str], version: int) -> None:
        """Open the file, and make it and its tables where they are not. Raises StoreError."""
        self.path = path
        self._schema = schema
        self._version = version
        self._lock = threading.RLock()
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._attempt(lambda connection: None)

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of the query. Raises StoreError."""
        return self._attempt(lambda connection: connection.execute(query, parameters).fetchall())

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run the statement for each row, all in one transaction. Raises StoreError."""
        parameters = list(rows)

        def work(connection: sqlite3.Connection) -> None:
            _in_transaction(connection, lambda: connection.executemany(statement, parameters))

        self._attempt(work)

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
            self._set_aside()
            try:
                return work(self._connected())
            except sqlite3.DatabaseError as error:
                raise self._failure(error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            import sqlite3

            # Before the file is opened: if it proves damaged, only this very file may be set aside.
            self._identity = _identity(self.path)
            # The lock above keeps threads apart. No isolation level: transactions begin where this module says.
            connection = sqlite3.connect(
                self.path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
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
                    f"{self.path} was written by a newer epbuild (its version is {found}; this one knows {self._version}).",
                    hint="Use the newer epbuild, or remove the file: what it remembers is found again.",
                )
                raise StoreError(problem)
            if found < self._version:
                for statement in self._schema:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={self._version}")

        _in_transaction(connection, make_tables)

    def _set_aside(self) -> None:
        from filelock import FileLock

        self.close()
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

    def _failure(self, error: sqlite3.Error) -> StoreError:
        problem = Problem(
            "EPB507",
            f"Cannot use {self.path or 'the state in memory'}: {error}.",
            hint="Check that its directory can be written to and has free space.",
        )
        return StoreError(problem)


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], object]) -> None:
    # IMMEDIATE: a transaction that begins by reading cannot wait for the write lock later, it fails at once.
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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

    return _code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _code(error: sqlite3.Error) -> int | None:
    # The low byte is the primary code; what is above it says more of the same. Errors of the module itself have none.
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF

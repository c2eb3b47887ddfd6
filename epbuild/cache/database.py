"""SQLite file whose content can be lost.

A damaged file is set aside and replaced by an empty one. A file is damaged if SQLite says so, if it has other tables, or if a row has
changed since it was written. Each row ends with a checksum that depends on the key of this user: rows of other users count as damaged,
and so do rows from a foreign log or journal beside the file. A read-only file is copied into memory.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epbuild.cache.errors import translate_os_errors
from epbuild.core.errors import Problem, StoreError

if TYPE_CHECKING:
    import sqlite3

_BUSY_SECONDS = 30.0
_RETRY_SECONDS = 0.01

_CHECKSUM_BYTES = 8
_MARK_BYTES = 4
"""Size of SQLite's `application_id`."""

_Result = TypeVar("_Result")


class Damage(Exception):
    """The file has content that epbuild did not write."""

    def __str__(self) -> str:
        return "its content is not what was written to it"


class _Foreign(Damage):
    """The file was not written with the key of this user."""


class Database:
    """Connection for all threads of this process. Without `path`, the database is in memory."""

    def __init__(
        self,
        path: Path | None,
        schema: Sequence[str],
        version: int,
        key: bytes,
        *,
        copied: Path | None = None,
        create: bool = True,
    ) -> None:
        """Open the file, and create it and its tables if they are missing.

        `key` is the key of the row checksums. Without a path, the content of the file `copied` is copied into memory. Without `create`, a
        file of another user stays, and an empty database in memory is used instead. Raises StoreError.
        """
        self.path = path
        self.is_foreign = False
        """Whether the file is ignored, as another user or another machine wrote it."""
        self._copied = copied
        self._schema = schema
        self._version = version
        self._key = key
        self._create = create
        self._lock = threading.RLock()
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._attempt(lambda connection: None)

    @property
    def copied(self) -> bool:
        """Whether this is a copy of a sound file, in memory."""
        return self._copied is not None

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query whose last column is the checksum, verified and without it. Raises StoreError."""
        return self.query(lambda connection: self.rows(connection, query, parameters))

    def query(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work`, which only reads and may run twice. Raises StoreError."""
        return self._attempt(work)

    def rows(self, connection: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that `read` returns, inside a transaction. Raises Damage."""
        return [self._unseal(row) for row in connection.execute(query, encode_values(parameters))]

    def sealed(self, *values: object) -> tuple[object, ...]:
        """Return a row that ends with its checksum."""
        stored = encode_values(values)
        return (*stored, self._checksum(stored))

    def select(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query for some columns, without verification. Raises StoreError."""
        return self._attempt(lambda connection: connection.execute(query, encode_values(parameters)).fetchall())

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run the statement for each row, all in one transaction. Raises StoreError."""
        parameters = [encode_values(row) for row in rows]
        self.change(lambda connection: connection.executemany(statement, parameters))

    def change(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work`, which may run twice, in one transaction that excludes other writers. Raises StoreError."""
        return self._attempt(lambda connection: _in_transaction(connection, lambda: work(connection)))

    def close(self) -> None:
        """Close the connection. A later use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _attempt(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        import sqlite3

        with self._lock:
            try:
                return work(self._connect())
            except sqlite3.DatabaseError as error:
                if not _is_damaged(error):
                    raise self._failure(error) from error
            except Damage as damage:
                self.is_foreign |= isinstance(damage, _Foreign)
            self._set_aside()
            try:
                return work(self._connect())
            except (sqlite3.DatabaseError, Damage) as error:
                raise self._failure(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            import sqlite3

            # Before the file is opened: if it is damaged, only this very file may be set aside.
            self._identity = _identity(self.path)
            if self.path is not None and not _is_regular(self.path):
                raise _Foreign
            # The lock above serializes threads. No isolation level: this module begins transactions itself.
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
        self._check_mark(connection)  # before writing to a file that may be another user's
        if self.path is not None:
            _use_write_ahead_log(connection)
            # A power cut may lose the last transactions, never the file. That is enough here.
            connection.execute("PRAGMA synchronous=NORMAL")

        def make_tables() -> None:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found > self._version:
                problem = Problem(
                    "EPB506",
                    f"{self.path} was written by a newer epbuild (version {found}; this epbuild supports {self._version})",
                    hint="Use the newer epbuild, or remove the file: its content is determined again.",
                )
                raise StoreError(problem)
            if found == self._version:
                return
            if found:
                raise Damage
            for statement in self._schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self._version}")
            connection.execute(f"PRAGMA application_id={self._mark}")

        _in_transaction(connection, make_tables)

    def _check_mark(self, connection: sqlite3.Connection) -> None:
        """Check that a file with tables has this user's mark. Raises _Foreign.

        The mark only distinguishes a file of another user from a damaged one. The protection is the checksums of the rows.
        """
        # The tables first: another process may be making them, and commits them together with the mark.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and mark != self._mark:
            raise _Foreign

    def _set_aside(self) -> None:
        from filelock import FileLock

        self.close()
        self._copied = None
        if self.is_foreign and not self._create:
            self.path = None
        if self.path is None:
            return
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        with translate_os_errors(f"set {self.path} aside", code="EPB507", elsewhere=None), lock:
            # Another process may have replaced the damaged file already.
            if _identity(self.path) == self._identity:
                for suffix in ("", "-wal", "-shm"):
                    part = self.path.with_name(f"{self.path.name}{suffix}")
                    with suppress(FileNotFoundError):
                        part.replace(self.path.with_name(f"{self.path.name}.damaged{suffix}"))

    @property
    def _mark(self) -> int:
        return int.from_bytes(blake2b(digest_size=_MARK_BYTES, key=self._key).digest(), "big", signed=True)

    def _checksum(self, values: Sequence[object]) -> int:
        # Rows are verified by tens of thousands. The text of a tuple takes a quarter of the time of its JSON.
        text = ascii(tuple(values)).encode("ascii")
        return int.from_bytes(blake2b(text, digest_size=_CHECKSUM_BYTES, key=self._key).digest(), "big", signed=True)

    def _unseal(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row without its checksum. Raises Damage if the row has changed since it was written."""
        *values, checksum = row
        if self._checksum(values) != checksum:
            raise Damage
        return tuple(values)

    def _failure(self, error: Exception) -> StoreError:
        problem = Problem(
            "EPB507",
            f"cannot use {self.path or 'the state in memory'}: {error}",
            hint="Check that its directory is writable and has free space.",
        )
        return StoreError(problem)


def encode_values(values: Sequence[object]) -> tuple[object, ...]:
    """Convert values for SQLite, which has no text for undecodable bytes of file names (PEP 383)."""
    return tuple(
        [
            value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) and not value.isascii() else value
            for value in values
        ]
    )


def _copy(path: Path, connection: sqlite3.Connection) -> bool:
    """Copy the file into an empty database, and return whether that worked."""
    import sqlite3

    # While a build has the file open, SQLite needs the build's `-shm` file. Without that file, no process has the database open, and it can
    # be read as an immutable one.
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)) as source:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(connection)
            return True
    return False


def _is_regular(path: Path) -> bool:
    """Return whether the file at `path` is missing, or a regular file and no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True  # SQLite reports the error


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.lstat() if path else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], _Result]) -> _Result:
    # IMMEDIATE: a transaction that begins with a read cannot wait for the write lock later, it fails at once.
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
            # Unlike others, this statement does not wait for other processes that are opening the file.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    import sqlite3

    match _code(error):
        case None:  # from the module itself: text that is not UTF-8
            return isinstance(error, sqlite3.OperationalError)
        case sqlite3.SQLITE_ERROR:  # other tables than those of the schema
            return str(error).startswith(("no such table", "no such column", "table "))
        case code:
            return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _code(error: sqlite3.Error) -> int | None:
    # The low byte is the primary code, the rest refines it. Errors of the module itself have no code.
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF

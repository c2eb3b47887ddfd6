"""SQLite database whose content may be lost, with a checksum in every row.

A damaged file is set aside and replaced by an empty one. A file is damaged if SQLite reports damage, if it has unexpected tables, or if a
row has changed since it was written. Each row ends with a checksum that depends on this user's key. So rows of other users, and rows from a
foreign log or journal beside the file, count as damaged. A read-only file is copied into memory.
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

from msgspec import msgpack

from epbuild.cache.errors import translate_os_errors
from epbuild.core.atomic import rename
from epbuild.core.errors import Problem, StoreError
from epbuild.core.file_use import describe_use
from epbuild.core.shown import format_path

if TYPE_CHECKING:
    import sqlite3

_BUSY_SECONDS = 30.0
_RETRY_SECONDS = 0.01

_CHECKSUM_BYTES = 8
_MARK_BYTES = 4
"""Size of SQLite's `application_id`, which contains a mark of the user."""

_Result = TypeVar("_Result")


class Damage(Exception):
    """Error for content in the database file that epbuild did not write."""

    def __str__(self) -> str:
        return "it contains data that epbuild did not write"


class _Foreign(Damage):
    """Error for a file that was not written with this user's key."""


class Database:
    """Database connection that all threads of this process share. If `path` is None, the database is in memory."""

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

        `key` is used for the row checksums. If `path` is None, the content of the file `copied` is copied into memory. If `create` is
        false, another user's file is left in place, and an empty database in memory is used instead. Raises StoreError.
        """
        self.path = path
        self.is_foreign = False
        """True if the file is ignored because another user or another machine wrote it."""
        self.is_held = False
        """True if the file is damaged and another process on Windows has it open. A database in memory is then used instead."""
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
        """True if the database is an in-memory copy of an undamaged file."""
        return self._copied is not None

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the verified rows of a query, without checksums. The query must select the checksum last. Raises StoreError."""
        return self.query(lambda connection: self.read_rows(connection, query, parameters))

    def query(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` and return its result. `work` must only read, and may run twice. Raises StoreError."""
        return self._attempt(work)

    def read_rows(self, connection: sqlite3.Connection, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the verified rows of a query, without checksums, inside a running `query` or `change`. Raises Damage."""
        return [self._unseal_row(row) for row in connection.execute(query, encode_values(parameters))]

    def seal_row(self, *values: object) -> tuple[object, ...]:
        """Return a row of the values, with its checksum appended."""
        stored = encode_values(values)
        return (*stored, self._compute_checksum(stored))

    def select(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query without verification, so that the query may select any columns. Raises StoreError."""
        return self._attempt(lambda connection: connection.execute(query, encode_values(parameters)).fetchall())

    def write(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run the statement for each row, all in one transaction. Raises StoreError."""
        parameters = [encode_values(row) for row in rows]
        self.change(lambda connection: connection.executemany(statement, parameters))

    def change(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` in one transaction that excludes other writers, and return its result. `work` may run twice. Raises StoreError."""
        return self._attempt(lambda connection: _in_transaction(connection, lambda: work(connection)))

    def close(self) -> None:
        """Close the connection. The next query opens it again."""
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
                    raise self._make_error(error) from error
            except Damage as damage:
                self.is_foreign |= isinstance(damage, _Foreign)
            self._set_aside()
            try:
                return work(self._connect())
            except (sqlite3.DatabaseError, Damage) as error:
                raise self._make_error(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            import sqlite3

            # Recorded before opening: if the file is damaged, only this file may be set aside, not a replacement.
            path = None if self.is_held else self.path
            self._identity = _get_file_identity(path)
            if path is not None and not _is_regular(path):
                raise _Foreign
            # The lock above serializes threads. No isolation level: this module begins transactions itself.
            connection = sqlite3.connect(path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                if self._copied is not None and not _copy(self._copied, connection):
                    self._copied = None
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._identity = self._identity or _get_file_identity(path)
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check_mark(connection)  # checked before writing, as the file may be another user's
        if self.path is not None and not self.is_held:
            _use_write_ahead_log(connection)
            # A power cut may lose the last transactions, but never the file. That is acceptable for a cache.
            connection.execute("PRAGMA synchronous=NORMAL")

        def make_tables() -> None:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found > self._version:
                formats = f"format {found}; this epbuild supports {self._version}"
                hint = "Use the newer epbuild, or delete the file: epbuild can recreate its content."
                message = f"{self._format_place()} was written by a newer epbuild ({formats})"
                raise StoreError(Problem("EPB506", message, None, hint))
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
        """Raise _Foreign if the file has tables, but its `application_id` is not this user's mark.

        The mark only distinguishes another user's file from a damaged file. Protection comes from the checksums of the rows.
        """
        # Read the tables first: another process may be creating them, and commits them together with the mark.
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
        with translate_os_errors("move {} aside", self.path, code="EPB507", elsewhere=None), lock:
            # Another process may have replaced the damaged file already.
            if _get_file_identity(self.path) == self._identity:
                try:
                    for suffix in ("", "-wal", "-shm"):
                        part = self.path.with_name(f"{self.path.name}{suffix}")
                        with suppress(FileNotFoundError):
                            rename(part, self.path.with_name(f"{self.path.name}.damaged{suffix}"))
                except PermissionError as error:
                    if describe_use(error) is None:
                        raise
                    self.is_held = True

    @property
    def _mark(self) -> int:
        return int.from_bytes(blake2b(digest_size=_MARK_BYTES, key=self._key).digest(), "big", signed=True)

    def _compute_checksum(self, values: tuple[object, ...]) -> int:
        data = msgpack.encode(values)
        return int.from_bytes(blake2b(data, digest_size=_CHECKSUM_BYTES, key=self._key).digest(), "big", signed=True)

    def _unseal_row(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row without its checksum. Raises Damage if the row has changed since it was written."""
        values = row[:-1]
        if self._compute_checksum(values) != row[-1]:
            raise Damage
        return values

    def _format_place(self) -> str:
        return format_path(self.path) if self.path is not None else "the in-memory state"

    def _make_error(self, error: Exception) -> StoreError:
        hint = "Check that its directory is writable and has free space."
        return StoreError(Problem("EPB507", f"cannot use {self._format_place()}: {error}", None, hint))


def encode_values(values: Sequence[object]) -> tuple[object, ...]:
    """Convert values for SQLite, which cannot store undecodable bytes of file names (PEP 383) as text."""
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
    """Return whether `path` is a regular file (not a link), or does not exist."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return True  # SQLite reports the error


def _get_file_identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.lstat() if path else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], _Result]) -> _Result:
    # IMMEDIATE acquires the write lock now. A transaction that begins with a read cannot wait for the lock later: it fails at once.
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
            # Unlike other statements, this one does not wait for processes that are opening the file.
            if _get_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    import sqlite3

    match _get_code(error):
        case None:  # raised by Python's module: text that is not UTF-8
            return isinstance(error, sqlite3.OperationalError)
        case sqlite3.SQLITE_ERROR:  # the tables differ from the schema
            return str(error).startswith(("no such table", "no such column", "table "))
        case code:
            return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _get_code(error: sqlite3.Error) -> int | None:
    # The low byte is the primary code, and the other bytes refine it. Errors of Python's module have no code.
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF

"""Digests of files. A file is read again only when its stat has changed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from epbuild.cache.errors import translate_os_errors
from epbuild.core.digest import LARGE_BYTES, Count, Readable, hash_bytes, hash_stream, ignore_count
from epbuild.core.errors import Problem, StoreError
from epbuild.core.host import get_change_time_ns, is_windows
from epbuild.core.shown import describe_files, format_path

# Numbers of files per task. Small files are batched, as handing one to a thread takes longer than reading it.
_BATCH = 20
_SMALL_BATCH = 200
_SMALL_BYTES = 1 << 16
_READING = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_ATTEMPTS = 3

# The coarsest timestamps in use (FAT's) are two seconds apart. Two writes within that time can leave the same stat.
_TIMESTAMP_STEP_NS = 2_000_000_000


_NO_FILES: Mapping[str, str] = MappingProxyType({})
AnyPath = TypeVar("AnyPath", str, Path)
_File = tuple[object, ...]
"""Identity of a file, which may have several names."""


class StatKey(NamedTuple):
    """Properties of a file that change when its content changes. Times are in nanoseconds since the epoch.

    `ctime_ns` is the result of `get_change_time_ns`, never the time of creation.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | Path, status: os.stat_result | None = None) -> StatKey:
        """Return the key of the file at `path` with the given `status`. If `status` is None, call `stat`, which may raise OSError."""
        seen = os.stat(path) if status is None else status  # noqa: PTH116
        return cls(seen.st_size, seen.st_mtime_ns, get_change_time_ns(path, seen), seen.st_ino)

    def is_settled(self, at_ns: int) -> bool:
        """Return whether every write after the time `at_ns` is certain to change this key."""
        return abs(at_ns - self.mtime_ns) > _TIMESTAMP_STEP_NS and abs(at_ns - self.ctime_ns) > _TIMESTAMP_STEP_NS


class StatMemory(Protocol):
    """Store of digests that are remembered between runs, by absolute path. It may forget entries."""

    def get_many(self, paths: Sequence[str]) -> Mapping[str, tuple[StatKey, str]]:
        """Return the latest entry of each path that has one."""
        ...

    def put_many(self, entries: Mapping[str, tuple[StatKey, str]]) -> None:
        """Remember the key and the digest of each path."""
        ...


Counting = Callable[[int, str], AbstractContextManager[Count]]
"""Function that returns a context manager, which yields a `Count`. The arguments are the total number of bytes and a name of the files."""


@contextmanager
def uncounted(total: int, files: str) -> Iterator[Count]:
    """Yield a callback that counts nothing."""
    yield ignore_count


class UnchangedFiles(Struct, frozen=True):
    """Files that had the same stat when this run began as at the end of an earlier run. Keys are paths as the plan writes them."""

    stats: Mapping[str, tuple[str, int, int, int, int]] = field(default_factory=dict)
    """Absolute path, size, mtime, ctime and inode of each file, as in a snapshot."""
    digests: Mapping[str, str] = field(default_factory=dict)

    def get_key(self, path: str) -> StatKey | None:
        """Return the stat key of an unchanged file. It is a regular file, not a link."""
        seen = self.stats.get(path)
        return StatKey(*seen[1:]) if seen is not None else None

    def without(self, paths: Iterable[str]) -> UnchangedFiles:
        """Return a copy without the stats of `paths`."""
        left_out = set(paths)
        return UnchangedFiles({path: seen for path, seen in self.stats.items() if path not in left_out}, self.digests)


NONE_UNCHANGED = UnchangedFiles()
"""No unchanged files, so that the stat of every file is read."""


class _FileReading(NamedTuple):
    key: StatKey
    digest: str
    is_stable: bool
    """True if every later change to the file is certain to change its key."""


class Digests:
    """Digests of files, remembered in `memory`. `counting` counts the bytes of each batch of files that is read."""

    threads = min(8, os.cpu_count() or 1)
    """Maximum number of reading threads. More threads would only wait for the disk, and each thread needs a buffer."""

    def __init__(self, memory: StatMemory, counting: Counting = uncounted) -> None:
        self._memory = memory
        self._counting = counting
        self.seen: dict[str, str] = {}
        """Digest of every file so far, by path. The digest is empty if the file's digest has changed between two calls."""

    def of(self, path: Path) -> str:
        """Return the digest of one file, as `of_many` does."""
        return self.of_many([path])[path]

    def of_many(self, paths: Iterable[AnyPath], known: Mapping[str, str] = _NO_FILES) -> dict[AnyPath, str]:
        """Return the hex digest of each file, by path. `known` has the digests of files that need not be looked up.

        A file with several names is read once. Raises one StoreError that covers all unreadable files (EPB504) and all files that change
        during every attempt to read them (EPB505).
        """
        asked = dict.fromkeys(paths)
        digests = {path: known[name] for path in asked if (name := os.fspath(path)) in known}
        problems: list[Problem] = []
        found: dict[AnyPath, os.stat_result] = {}
        for path in asked if len(digests) < len(asked) else ():
            if path in digests:
                continue
            try:
                found[path] = _get_status(path)
            except StoreError as error:
                problems.extend(error.problems)
        names = {path: _make_absolute(path) for path in found}
        entries = self._memory.get_many(list(names.values())) if names else {}
        unread: dict[_File, list[AnyPath]] = {}
        keys: dict[_File, StatKey] = {}
        for path, status in found.items():
            key = StatKey.of(path, status)
            entry = entries.get(names[path])
            if entry is not None and entry[0] == key:
                digests[path] = entry[1]
            else:
                # File systems without inode numbers report 0 for all files.
                file = (status.st_dev, key) if key.inode else (names[path],)
                unread.setdefault(file, []).append(path)
                keys[file] = key
        if unread:
            digests.update(self._read_files(unread, keys, problems))
        for path, digest in digests.items():
            name = os.fspath(path)
            self.seen[name] = digest if self.seen.get(name, digest) == digest else ""  # empty if the digest has changed
        if problems:
            raise StoreError(*problems)
        return {path: digests[path] for path in asked}

    def _read_files(
        self, unread: Mapping[_File, list[AnyPath]], keys: Mapping[_File, StatKey], problems: list[Problem]
    ) -> dict[AnyPath, str]:
        """Hash the files in `unread`, which has all names of each file, and remember the digests.

        Return the digests by name, and add failures to `problems`.
        """
        digests: dict[AnyPath, str] = {}
        entries: dict[str, tuple[StatKey, str]] = {}
        # The largest files come first, so that no core still reads one when all other cores are done.
        files = sorted(unread, key=lambda file: keys[file].size, reverse=True)
        sizes = {os.fspath(unread[file][0]): keys[file].size for file in files}
        with self._counting(sum(sizes.values()), describe_files(sizes)) as count:
            readings = self._read_all([(os.fspath(unread[file][0]), keys[file]) for file in files], count)
        for file, reading in zip(files, readings, strict=True):
            if isinstance(reading, StoreError):
                problems.extend(reading.problems)
                continue
            digests.update(dict.fromkeys(unread[file], reading.digest))
            if reading.is_stable:
                entries.update({_make_absolute(name): (reading.key, reading.digest) for name in unread[file]})
        if entries:
            self._memory.put_many(entries)
        return digests

    @contextmanager
    def relinking(self, paths: Iterable[Path]) -> Iterator[None]:
        """Keep remembered digests valid while the block creates or removes hard links to the files.

        A link changes only a file's ctime. A file that has changed otherwise is read again later. If the memory cannot be used, all files
        are read again, and the links stay valid. Raises StoreError before the block runs, and any error that the block raises.
        """
        before = {path: StatKey.of(path, _get_status(path)) for path in paths}
        yield
        entries = {}
        with suppress(StoreError):
            remembered = self._memory.get_many([str(path.absolute()) for path in before])
            for path, key in before.items():
                after = StatKey.of(path, _get_status(path))
                known = remembered.get(str(path.absolute()))
                if known is not None and known[0] == key and after._replace(ctime_ns=key.ctime_ns) == key:
                    entries[str(path.absolute())] = (after, known[1])
            if entries:
                self._memory.put_many(entries)

    def hash(self, file: Readable, count: Count, *, ahead: bool) -> str:
        """Return the digest of the rest of an open file, and pass the number of hashed bytes to `count`."""
        return hash_stream(file, count, ahead=ahead).digest

    def hash_small(self, path: str, size: int) -> str | None:
        """Read a file in one call and return its digest, or None if its size is not `size`. Raises OSError."""
        file = os.open(path, _READING)
        try:
            data = os.read(file, size + 1)
        finally:
            os.close(file)
        return hash_bytes(data) if len(data) == size else None

    def _read_all(self, files: list[tuple[str, StatKey]], count: Count) -> list[_FileReading | StoreError]:
        """Hash all files, which are sorted by size with the largest first. Return the results in order."""
        large = sum(key.size >= LARGE_BYTES for _, key in files)

        def read(batch: list[tuple[str, StatKey]]) -> list[_FileReading | StoreError]:
            return [self._attempt(path, key, count, ahead=large < self.threads) for path, key in batch]

        batches = list(_split_into_batches(files))
        if len(batches) < 2:
            return [reading for batch in batches for reading in read(batch)]
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="digest")
        try:
            return [reading for readings in pool.map(read, batches) for reading in readings]
        finally:
            pool.shutdown(cancel_futures=True)

    def _attempt(self, path: str, key: StatKey, count: Count, *, ahead: bool) -> _FileReading | StoreError:
        try:
            try:
                return self._read(path, key, count, ahead=ahead)
            except OSError:
                with translate_os_errors("read {}", path, code="EPB504", elsewhere=None):
                    raise
        except StoreError as error:
            return error

    def _read(self, path: str, before: StatKey, count: Count, *, ahead: bool) -> _FileReading:
        """Hash a file, and retry if it changed during the read. Raises OSError, StoreError."""
        for _ in range(_ATTEMPTS):
            started_ns = time.time_ns()
            digest = self.hash_small(path, before.size) if before.size <= _SMALL_BYTES else None
            if digest is not None:
                count(before.size)
            else:
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                    digest = self.hash(file, count, ahead=ahead)
            after = StatKey.of(path, _get_status(path))
            if after == before:
                return _FileReading(before, digest, before.is_settled(started_ns))
            before = after
        hint = "Wait until the program that writes the file has finished, then run the build again."
        raise StoreError(Problem("EPB505", f"{format_path(path)} changed while it was being read", None, hint))


def _split_into_batches(files: list[tuple[str, StatKey]]) -> Iterator[list[tuple[str, StatKey]]]:
    """Yield batches of files for the threads: one large file, or several small ones."""
    start = 0
    while start < len(files):
        size = files[start][1].size
        count = 1 if size >= LARGE_BYTES else _BATCH if size > _SMALL_BYTES else _SMALL_BATCH
        yield files[start : start + count]
        start += count


def is_unchanged(path: Path, key: StatKey) -> bool:
    """Return whether the file exists and its stat still matches `key`."""
    try:
        return StatKey.of(path) == key
    except OSError:
        return False


def stat_writes(path: Path) -> tuple[int, ...]:
    """Return stats that change when a file is written or replaced, but not when a hard link is added. Empty if the file is gone."""
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


def _make_absolute(path: str | Path) -> str:
    """Return the absolute path as text. This function avoids pathlib, which is too slow for tens of thousands of files."""
    name = str(path)
    if os.path.isabs(name):  # noqa: PTH117
        return name
    # On Windows, a path can be relative to the current folder of another drive.
    return str(Path(path).absolute()) if is_windows() else os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118


def _get_status(path: str | Path) -> os.stat_result:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for tens of thousands of files
    except OSError:
        with translate_os_errors("read {}", path, code="EPB504", elsewhere=None):
            raise
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for a writer.
        raise StoreError(Problem("EPB504", f"cannot read {format_path(path)}: it is not a regular file"))
    return status

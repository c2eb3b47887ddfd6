"""Atomic writes: files and folders that appear whole or not at all.

One policy on fsync: what users or other processes rely on (a lock, a recipe, an output, a blob) is synced before it is renamed to its
place, and the name after it. What is only remembered, and made again in a moment, is not: `durable=False`.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.core.host import on_windows

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from concurrent.futures import Executor

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)

_PAUSES_SECONDS = (0.01, 0.05, 0.2, 0.5)

# rename(2); a C library without the function is asked by its number, which is that of x86-64 or of 64-bit Arm.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
# EINVAL: this file system cannot. EPERM and ENOSYS: this container or kernel does not let us. Anything else the renames will meet as well.
_CANNOT_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV})

# File systems with a journal commit together what was begun together: eight threads that each sync their share of 1,000 small files take a
# tenth of the time of one (0.1 s and 1 to 3 s on ext4).
_SYNCING_THREADS = 8


def rename(source: Path, destination: Path) -> None:
    """Rename a file or a folder; a file takes the place of one that is there. Raises OSError.

    On Windows programs that look at files (a reader here, an antivirus, an indexer) keep them from being renamed for milliseconds: that is
    waited for.
    """
    for pause in _PAUSES_SECONDS if on_windows() else ():
        try:
            source.replace(destination)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    source.replace(destination)


@contextmanager
def new_file(path: Path, *, overwrite: bool = True, durable: bool = True) -> Iterator[Path]:
    """Yield a free name beside `path` for a draft, to be written, and rename it to its place if nothing was raised meanwhile.

    A link stays one: what it leads to is written. Raises FileExistsError, without `overwrite`, where there is something at `path` by then;
    and OSError.
    """
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.stem}-{os.urandom(4).hex()}{path.suffix}")
    try:
        yield draft
        if durable:
            sync_file(draft)
        if not overwrite:
            path.open("x").close()
        rename(draft, path)
        if durable:
            with suppress(PermissionError):  # of a folder that may be written to and not read
                sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Write a whole file, in place of any that is there; text as UTF-8 with the line ends that it has. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    with new_file(path, durable=durable) as draft, open(os.open(draft, _NEW_FILE, mode), "wb") as file:  # noqa: PTH123
        file.write(data)


def write_new(path: str | Path, data: bytes) -> None:
    """Write a file that must not be there, and make the folders that it needs; what fails leaves none. Raises OSError.

    It is for a tree that is synced as a whole. Python's own files take twice as long for one of a few hundred bytes.
    """
    try:
        descriptor = os.open(path, _NEW_FILE, 0o666)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, data[written:])
        finally:
            os.close(descriptor)
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders of one file system change places in one step; False where the system cannot, and nothing is done.

    Linux can, on most local file systems. Raises OSError for what stands in the way of any rename.
    """
    renameat2 = _renameat2()
    if renameat2 is None:
        return False
    import ctypes

    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def sync_directory(directory: str | Path) -> None:
    """Wait until the names in a directory are on the disk. Raises OSError."""
    if not on_windows():  # where a directory cannot be opened
        _sync(directory, os.O_RDONLY)


def sync_tree(folders: Sequence[str | Path], files: Sequence[str | Path]) -> None:
    """Wait until `files` and the names in `folders` are on the disk, so that a rename after it never shows less. Raises OSError."""
    shares = [(files[number::_SYNCING_THREADS], folders[number::_SYNCING_THREADS]) for number in range(_SYNCING_THREADS)]
    for _ in _syncing().map(_sync_share, [share for share in shares if any(share)]):
        pass


def _sync_share(share: tuple[Sequence[str | Path], Sequence[str | Path]]) -> None:
    files, folders = share
    for path in files:
        sync_file(path)
    for path in folders:
        sync_directory(path)


def sync_file(path: str | Path) -> None:
    """Wait until the content of a file is on the disk. Raises OSError."""
    # Windows writes no file out that is opened for reading.
    _sync(path, os.O_RDWR if on_windows() else os.O_RDONLY)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it, where they are not, so that they last. Raises OSError."""
    if folder.is_dir():
        return
    missing = [folder, *folder.parents]
    missing = missing[: next((count for count, path in enumerate(missing) if path.is_dir()), len(missing))]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def _renameat2() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        return _declared(library.renameat2, ())
    number = _RENAMEAT2.get(os.uname().machine)
    if number is None:
        return None
    syscall = _declared(library.syscall, (ctypes.c_long,))
    return lambda *arguments: syscall(number, *arguments)


def _declared(function: ctypes._NamedFuncPointer, first: Sequence[type]) -> Callable[..., int]:
    import ctypes

    function.argtypes = (*first, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_long if first else ctypes.c_int
    return function


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    try:
        _wait_for(descriptor)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has nothing to sync
            raise


@cache
def _syncing() -> Executor:
    """The threads that sync, kept: to start eight for each of a thousand small outputs takes longer than what they do."""
    from concurrent.futures import ThreadPoolExecutor

    if hasattr(os, "register_at_fork"):  # a process that is forked off has none of them
        os.register_at_fork(after_in_child=_syncing.cache_clear)
    return ThreadPoolExecutor(_SYNCING_THREADS, thread_name_prefix="sync")

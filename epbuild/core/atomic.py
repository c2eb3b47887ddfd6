"""Atomic writes of files and folders, which appear complete or not at all.

All writes follow one policy on fsync. A file that users or other processes rely on (a lock, a recipe, an output, a blob) is
synced before it is renamed to its final name, and its folder is synced after the rename. A file that can be recomputed quickly is
not synced (`durable=False`).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from epbuild.core.file_use import retry_in_use
from epbuild.core.host import is_windows

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)

# See rename(2). If the C library lacks the function, the system call is made by number (x86-64, 64-bit Arm).
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
# EINVAL: the file system does not support an exchange. EPERM, ENOSYS: the container or kernel forbids it. All other errors would
# also occur in a plain rename.
_CANNOT_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV})

# File systems with a journal commit concurrent syncs together. For 1,000 small files on ext4, eight threads take 0.1 s, and one
# thread takes 1 to 3 s.
_SYNCING_THREADS = 8


def rename(source: Path, destination: Path) -> None:
    """Rename a file or a folder, and replace an existing file. Raises OSError."""
    retry_in_use(lambda: source.replace(destination))


@contextmanager
def new_file(path: Path, *, overwrite: bool = True, durable: bool = True) -> Iterator[Path]:
    """Yield an unused path beside `path` for a draft, and rename the draft to `path` if the block succeeds.

    If `path` is a link, its target is replaced. Raises OSError. If `overwrite` is False and `path` exists at the time of the
    rename, raises FileExistsError.
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
            with suppress(PermissionError):  # a folder that is writable but not readable
                sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Write a file atomically, and replace an existing file. Text becomes UTF-8 with unchanged line endings. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    with new_file(path, durable=durable) as draft, open(os.open(draft, _NEW_FILE, mode), "wb") as file:  # noqa: PTH123
        file.write(data)


def write_new(path: str | Path, data: bytes) -> None:
    """Write a file that must not exist yet, and create its parent folders. A failure leaves no file. Raises OSError.

    The file is not synced, because it is part of a tree that the caller syncs as a whole.
    """
    path = Path(path)
    try:
        file = path.open("xb", buffering=0)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb", buffering=0)
    try:
        with file:
            written = file.write(data)
            while written < len(data):
                written += file.write(data[written:])
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Exchange two files or folders on one file system atomically. Return False if the system does not support this.

    Linux supports exchanges on most local file systems. Raises OSError for errors that would also occur in a plain rename.
    """
    renameat2 = _load_renameat2()
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
    """Sync the names in a directory to disk. Raises OSError."""
    if not is_windows():  # Windows cannot open directories
        _sync(directory, os.O_RDONLY)


def sync_tree(folders: Sequence[str | Path], files: Sequence[str | Path]) -> None:
    """Sync `files` and the names in `folders` to disk, so that a later rename never exposes an incomplete tree.

    Raises OSError.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_SYNCING_THREADS, thread_name_prefix="sync") as pool:
        for done in [*(pool.submit(sync_file, path) for path in files), *(pool.submit(sync_directory, path) for path in folders)]:
            done.result()


def sync_file(path: str | Path) -> None:
    """Sync the content of a file to disk. Raises OSError."""
    # Windows cannot flush a file that is open only for reading.
    _sync(path, os.O_RDWR if is_windows() else os.O_RDONLY)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parent folders, and sync them. Raises OSError."""
    if folder.is_dir():
        return
    missing = list(takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def _load_renameat2() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        return _declare(library.renameat2, ())
    number = _RENAMEAT2.get(os.uname().machine)
    if number is None:
        return None
    syscall = _declare(library.syscall, (ctypes.c_long,))
    return lambda *arguments: syscall(number, *arguments)


def _declare(function: ctypes._NamedFuncPointer, first: Sequence[type]) -> Callable[..., int]:
    import ctypes

    function.argtypes = (*first, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_long if first else ctypes.c_int
    return function


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system has nothing to sync
            raise
    finally:
        os.close(descriptor)

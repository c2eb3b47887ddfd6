"""Files of epbuild itself, and private cache files of the current user.

This module has few imports, because the fast path imports it.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterable


@functools.cache
def list_own_files() -> list[str]:
    """Return the files of epbuild itself. If a file changes, earlier results may be invalid."""
    folder = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    return list_program_files([folder, os.path.join(os.path.dirname(folder), "schemas")])  # noqa: PTH118, PTH120


def list_program_files(folders: Iterable[str]) -> list[str]:
    """Return the files of a program in `folders` and their subfolders: code, schemas and data."""
    return [
        os.path.join(root, name)  # noqa: PTH118
        for top in folders
        for root, _, names in os.walk(top)
        for name in names
        if name.endswith((".py", ".toml", ".json")) and not name.startswith(".")  # editors' lock files are dangling links
    ]


def read_own(place: str) -> bytes:
    """Read a file that only the current user may write. Raises OSError, and ValueError if other users may write the file.

    The check is needed because users may share a cache.
    """
    if not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - a pipe would wait for a writer
        raise ValueError(place)
    with open(place, "rb") as file:  # noqa: PTH123
        seen = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (seen.st_uid != os.getuid() or seen.st_mode & 0o022):
            raise ValueError(place)
        return file.read()


def write_own(place: str, content: bytes) -> None:
    """Write a file, and create its folder, with access only for the owner. Ignore errors, because such files only save time."""
    from pathlib import Path

    from epbuild.core.atomic import write_file

    try:
        Path(place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only the owner may read the file, because a short secret can be guessed from its digest.
        write_file(Path(place), content, durable=False, mode=0o600)
    except OSError:
        return

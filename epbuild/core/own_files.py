"""Files of epbuild itself, and files that only this user may write.

This module imports little, as the fast path imports it.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterable


@functools.cache
def list_own_files() -> list[str]:
    """Return the files of epbuild itself. If one changes, earlier results may not hold."""
    folder = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    return list_program_files([folder, os.path.join(os.path.dirname(folder), "schemas")])  # noqa: PTH118, PTH120


def list_program_files(folders: Iterable[str]) -> list[str]:
    """Return the files below folders that a program consists of."""
    return [
        os.path.join(root, name)  # noqa: PTH118
        for top in folders
        for root, _, names in os.walk(top)
        for name in names
        if name.endswith((".py", ".toml", ".json")) and not name.startswith(".")  # lock files of editors are links to nowhere
    ]


def read_own(place: str) -> bytes:
    """Read a file that only this user may write. Raises OSError, and ValueError for any other file, as a cache may be shared."""
    if not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - a pipe would wait for a writer
        raise ValueError(place)
    with open(place, "rb") as file:  # noqa: PTH123
        seen = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (seen.st_uid != os.getuid() or seen.st_mode & 0o022):
            raise ValueError(place)
        return file.read()


def write_own(place: str, content: bytes) -> None:
    """Write a file that only its owner may read, in a folder of the same kind. Errors are ignored: such files only save time."""
    from pathlib import Path

    from epbuild.core.atomic import write_file

    try:
        Path(place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Readable by its owner only: a short secret can be guessed from its digest.
        write_file(Path(place), content, durable=False, mode=0o600)
    except OSError:
        return

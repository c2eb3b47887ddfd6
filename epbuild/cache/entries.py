"""Entries of a store, with their sizes and times of last use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

Kind = Literal["record", "blob", "remote model", "partial download", "damaged"]
KINDS: tuple[Kind, ...] = ("record", "blob", "remote model", "partial download", "damaged")


class CacheEntry(Struct, frozen=True):
    """Entry of a store. Its name is unique within its kind. `used_ns` is the Unix time of its last use in nanoseconds."""

    kind: Kind
    name: str
    size: int
    used_ns: int


def list_files_below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every regular file below a folder, which need not exist.

    Files that are removed during the listing are skipped. Raises OSError.
    """
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from list_files_below(Path(entry))
        elif entry.is_file(follow_symlinks=False):
            try:
                # Not `entry.stat()`: on Windows, its result has no inode and may be out of date.
                status = os.stat(entry.path, follow_symlinks=False)  # noqa: PTH116
            except FileNotFoundError:
                continue
            yield Path(entry), status

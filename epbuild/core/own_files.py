"""Files of epbuild itself, and files that only this user may write.

It imports next to nothing, for quick answers.
"""

from __future__ import annotations

import functools
import os
import stat


@functools.cache
def own_files() -> list[str]:
    """Return the files of epbuild itself: another epbuild may answer differently."""
    folder = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    schemas = os.path.join(os.path.dirname(folder), "schemas")  # noqa: PTH118, PTH120
    return [
        os.path.join(root, name)  # noqa: PTH118
        for top in (folder, schemas)
        for root, _, names in os.walk(top)
        for name in names
        if name.endswith((".py", ".toml", ".json")) and not name.startswith(".")  # lock files of editors are links to nowhere
    ]


def read_own(place: str) -> bytes:
    """Read a file that only this user may write. Raises OSError, and ValueError for any other file: a cache may be shared."""
    if not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - a pipe would wait for a writer
        raise ValueError(place)
    with open(place, "rb") as file:  # noqa: PTH123
        seen = os.fstat(file.fileno())
        if hasattr(os, "getuid") and (seen.st_uid != os.getuid() or seen.st_mode & 0o022):
            raise ValueError(place)
        return file.read()


def write_own(place: str, content: bytes) -> None:
    """Write a file for its owner alone, in a folder for this user alone. If that fails there is none: it only saves time."""
    from pathlib import Path

    from epbuild.core.atomic import write_file

    try:
        Path(place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The digest of a short secret reveals it to all who can try every one.
        write_file(Path(place), content, durable=False, mode=0o600)
    except OSError:
        return

"""Renames and removals of files that other programs may use.

Windows does not replace, rename or remove a file that another program has open.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from epbuild.core.host import is_windows
from epbuild.core.shown import format_path

CLOSE_PROGRAM = "Close the program that uses it, and run the command again."
"""Hint for a file from `describe_use`."""

_ANSWER = "use"
"""Attribute of an error in which `describe_use` caches its result."""
_PAUSES_SECONDS = (0.01, 0.05, 0.2, 0.5)
_MAX_FILES = 1000
_ACCESS_DENIED = 5
"""Error code for an open file in a folder to rename, and also for a missing permission."""
_SHARING_VIOLATIONS = (32, 33)
"""Error codes ERROR_SHARING_VIOLATION and ERROR_LOCK_VIOLATION."""

T = TypeVar("T")


def retry_in_use(change: Callable[[], T]) -> T:
    """Call `change`, which renames, removes or opens files, and return its result. Raises OSError, which names the user of a file.

    On Windows, a program that reads a file (another epbuild, an antivirus, an indexer) blocks changes for milliseconds. The call is
    then retried for a moment.
    """
    for pause in _PAUSES_SECONDS if is_windows() else ():
        try:
            return change()
        except PermissionError:
            time.sleep(pause)
    try:
        return change()
    except PermissionError as error:
        error.strerror = describe_use(error) or error.strerror
        raise


def discard(path: Path) -> None:
    """Remove a file if it exists, even if it is read-only. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if not is_windows():
            raise
        path.chmod(stat.S_IWRITE)  # Windows cannot remove read-only files
        retry_in_use(lambda: path.unlink(missing_ok=True))


def describe_use(error: OSError) -> str | None:
    """Return which file another program uses, as a sentence without a full stop. Return None if the error has another cause.

    The answer is kept in the error, so that callers of `retry_in_use` do not search for the program again.
    """
    known = vars(error)
    if _ANSWER not in known:
        known[_ANSWER] = _search_use(error)
    answer: str | None = known[_ANSWER]
    return answer


def _search_use(error: OSError) -> str | None:
    code = getattr(error, "winerror", None)
    if code != _ACCESS_DENIED and code not in _SHARING_VIOLATIONS:
        return None
    places = [Path(os.fsdecode(place)) for place in (error.filename, error.filename2) if place]
    files = [file for place in places for file in (_list_files(place) if place.is_dir() else [place])][:_MAX_FILES]
    found = _find_use(files)
    if found is not None:
        file, programs = found
        return f"{format_path(file)} is used by {', '.join(programs)}"
    return f"{format_path(places[0])} is used by another program" if places and code in _SHARING_VIOLATIONS else None


def _list_files(folder: Path) -> list[Path]:
    return [Path(root, name) for root, _, names in os.walk(folder) for name in names]


def _find_use(files: Sequence[Path]) -> tuple[Path, list[str]] | None:
    """Return one of the files that a program uses, and all programs that use it."""
    from epbuild.core.windows import list_file_users

    programs = list_file_users([os.path.abspath(file) for file in files])  # noqa: PTH100
    if not programs or len(files) == 1:
        return (files[0], programs) if programs else None
    middle = len(files) // 2
    return _find_use(files[:middle]) or _find_use(files[middle:])

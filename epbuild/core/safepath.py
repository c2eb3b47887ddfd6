"""Safe paths: portable names, references that stay in their folder, and links."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import re
import stat
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

# From "Naming Files, Paths, and Namespaces" in the documentation of Windows. Under the name of a device Windows opens that, whatever
# follows the first dot.
_DEVICE = r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?"
_UNPORTABLE = re.compile(r"[<>:\"|?*\\\x00-\x1f]|[. ]\Z")
_DEVICES = frozenset({"con", "prn", "aux", "nul", "com", "lpt"})
"""What the names of all of them begin with: to ask that takes a tenth of the time."""
_IS_DEVICE = re.compile(_DEVICE, re.IGNORECASE | re.DOTALL)
_LONGEST_QUOTE = 256
MAX_NAME_BYTES = 255
"""Bytes of a file's name that ext4, XFS, APFS and NTFS take."""


class BadReference(ValueError):
    """A reference from one file to another cannot be followed; the text is the reason."""


class MissingReference(BadReference):
    """The reference is well formed, but there is no such file."""


def is_device(name: str) -> bool:
    """Whether Windows takes the last part of a path for a device."""
    return name[:3].lower() in _DEVICES and _IS_DEVICE.fullmatch(name) is not None


def unportable(path: str) -> str | None:
    """The first part of a POSIX path that not every platform has as the name of a file or a folder."""
    return next((name for name in path.split("/") if _UNPORTABLE.search(name) or is_device(name)), None)


def overlong(path: str) -> str | None:
    """Return the first part of a POSIX path that is longer than file systems allow."""
    return next((name for name in path.split("/") if len(os.fsencode(name)) > MAX_NAME_BYTES), None)


def real_path(path: Path) -> Path:
    """`path` without links. A link that leads to itself stays, where `Path.resolve` raises RuntimeError before Python 3.13."""
    return Path(os.path.realpath(path))


def user_path(text: str) -> Path:
    """A path with `~` or `~name` expanded; one that names no home here stays, and leads to no file."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    return path


def is_file(path: Path) -> bool:
    """Whether a path leads to a file; not where no file can have its name, or a folder on the way may not be looked into."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_regular(path: Path) -> bool:
    """Return whether a regular file is at `path`, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder; not where no folder can have its name."""
    return os.path.isdir(path)  # noqa: PTH112 - a path of any length has an answer


def is_anchored(path: str) -> bool:
    """Whether some platform takes a path for an absolute one, or for one of another drive."""
    if path[:1] not in ("/", "\\") and path[1:2] != ":":
        return False
    windows = PureWindowsPath(path)  # whose rules also see every absolute POSIX path, and drive-relative paths
    return bool(windows.drive or windows.root)


def climbs(path: str) -> bool:
    """Whether a part of a path is `..`, by any platform's rules."""
    return ".." in path.replace("\\", "/").split("/")


def leaves(path: str) -> bool:
    """Whether a relative path leads out of its folder by its own text, by any platform's rules."""
    return climbs(posixpath.normpath(path.replace("\\", "/")))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path stays in a folder also when every link is followed."""
    return real_path(path).is_relative_to(real_path(folder))


def locate(folder: Path, reference: str, what: str = "file") -> Path:
    """The file that a model in `folder` refers to, which lies in `folder` also when every link is followed.

    Raises BadReference for a reference that EPs refuse, or a link that leads out; MissingReference where no such file exists.
    """
    check_reference(reference)
    path = folder / reference
    try:
        inside = is_inside(path, folder)
        found = inside and path.is_file()
    except (OSError, ValueError):  # a name that the file system cannot have, or a directory that may not be entered
        inside, found = True, False
    if not inside:
        raise BadReference(f"the {what} '{shortened(reference)}' is a link to a place outside its folder")
    if not found:
        raise MissingReference(f"the {what} '{shortened(reference)}' does not exist")
    return path


def check_reference(reference: str) -> None:
    """Raises BadReference unless `reference` is a relative path of a file that stays in the model's directory on every platform."""
    if not reference:
        raise BadReference("the reference is empty")
    if is_anchored(reference):
        raise BadReference(
            f"the reference '{shortened(reference)}' is an absolute path; it must be relative to the model's directory"
        )
    if "\\" in reference:
        raise BadReference(f"the reference '{shortened(reference)}' has a backslash; its parts must be separated by '/'")
    if climbs(reference):
        raise BadReference(f"the reference '{shortened(reference)}' has '..'; it must stay in the model's directory")
    if "\0" in reference:
        raise BadReference(f"the reference {shortened(reference)!r} has a NUL character, which no file name can have")
    if reference.endswith("/"):
        raise BadReference(f"the reference '{shortened(reference)}' names a folder; it must name a file")


def shortened(reference: str) -> str:
    """A reference as a message quotes it: an invalid one may have any length."""
    return reference if len(reference) <= _LONGEST_QUOTE else f"{reference[:_LONGEST_QUOTE]}…"


def links_on_the_way(paths: Iterable[str]) -> dict[str, str]:
    """Every link that the system follows from the start of these paths to the files that they name, with what it holds.

    `..` after a link is the folder above the one that the link leads to, as the system takes it: nothing is shortened by name.
    """
    links: dict[str, str] = {}
    looked: set[str] = set()
    pending = list(paths)
    while pending:
        path = pending.pop()
        while path and path not in looked:
            looked.add(path)
            folder = os.path.dirname(path)  # noqa: PTH120 - pathlib takes longer, and 30,000 files may be asked for
            try:
                links[path] = os.readlink(path)  # noqa: PTH115
            except (OSError, ValueError):
                pass  # no link
            else:
                pending.append(os.path.join(folder, links[path]))  # noqa: PTH118
            path = folder
    return links


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open the file at `path` for reading. Raises OSError, also for anything but a regular file: a pipe would wait for a writer."""
    return io.BufferedReader(open_raw(path))


def open_raw(path: str | Path) -> io.FileIO:
    """Open as `open_regular` does, without a buffer."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - 30,000 files may be opened
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return io.FileIO(path)


def read_regular(path: str | Path) -> bytes:
    """Return the content of the file at `path`. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()

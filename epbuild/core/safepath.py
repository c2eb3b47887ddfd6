"""Checks of paths: portable names, references, links, regular files."""

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

# From "Naming Files, Paths, and Namespaces" in the Windows documentation. A device name with an extension is still a device.
_DEVICE = r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\.[^/]*)?"
_IS_DEVICE = re.compile(_DEVICE, re.IGNORECASE)
_UNPORTABLE = re.compile(rf"[<>:\"|?*\\\x00-\x1f]|[. ](?![^/])|(?<![^/]){_DEVICE}(?![^/])", re.IGNORECASE)
"""Invalid text in a POSIX path. A search of the whole path, instead of each part, saves 0.02 s for 10,000 outputs."""
_MAX_QUOTE = 256
MAX_NAME_BYTES = 255
"""Maximum length of a file name on ext4, XFS, APFS and NTFS."""


class BadReference(ValueError):
    """Error for an invalid reference from one file to another. Its text is the reason."""


class MissingReference(BadReference):
    """Error for a well-formed reference to a file that does not exist."""


def is_device(name: str) -> bool:
    """Return whether Windows treats a file name as a device."""
    return _IS_DEVICE.fullmatch(name) is not None


def find_unportable_part(path: str) -> str | None:
    """Return the first part of a POSIX path that is an invalid file name on at least one platform, or None."""
    found = _UNPORTABLE.search(path)
    return path[path.rfind("/", 0, found.start()) + 1 :].partition("/")[0] if found is not None else None


def find_overlong_part(path: str) -> str | None:
    """Return the first part of a POSIX path that is longer than file systems allow. Return None if no part is too long."""
    if len(os.fsencode(path)) <= MAX_NAME_BYTES:
        return None
    return next((name for name in path.split("/") if len(os.fsencode(name)) > MAX_NAME_BYTES), None)


def resolve_links(path: Path) -> Path:
    """Resolve the links in a path.

    A link to itself is kept. Before Python 3.13, `Path.resolve` raises RuntimeError for such a link.
    """
    return Path(os.path.realpath(path))


def expand_home(text: str) -> Path:
    """Expand `~` or `~name` in a path. If the user is unknown, the path is not expanded and therefore names no file."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    return path


def is_file(path: Path) -> bool:
    """Return whether a path leads to a file. Return False for an invalid name or if a folder in the path is unreadable."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder. Return False for an invalid name."""
    return os.path.isdir(path)  # noqa: PTH112 - accepts a path of any length


def is_anchored(path: str) -> bool:
    """Return whether any platform treats a path as absolute or as relative to a drive."""
    if path[:1] not in ("/", "\\") and path[1:2] != ":":
        return False
    windows = PureWindowsPath(path)  # Windows rules also cover absolute POSIX paths and drive-relative paths
    return bool(windows.drive or windows.root)


def has_parent_part(path: str) -> bool:
    """Return whether a path has a part `..` on any platform."""
    return ".." in path.replace("\\", "/").split("/")


def is_outside(path: str) -> bool:
    """Return whether a relative path leaves its folder on any platform. Links are not followed."""
    return has_parent_part(posixpath.normpath(path.replace("\\", "/")))


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder after all links are followed."""
    return resolve_links(path).is_relative_to(resolve_links(folder))


def locate(folder: Path, reference: str, what: str = "file") -> Path:
    """Return the file that a model in `folder` refers to.

    Raises BadReference for a reference that EPs reject or for a link to a file outside `folder`. Raises MissingReference if the
    file does not exist.
    """
    check_reference(reference)
    path = folder / reference
    try:
        inside = is_inside(path, folder)
        found = inside and path.is_file()
    except (OSError, ValueError):  # an invalid name, or an unreadable directory
        inside, found = True, False
    if not inside:
        raise BadReference(f"the {what} '{shorten_reference(reference)}' is a link to a path outside its folder")
    if not found:
        raise MissingReference(f"the {what} '{shorten_reference(reference)}' does not exist")
    return path


def check_reference(reference: str) -> None:
    """Raise BadReference unless `reference` is a relative path inside the model's directory on every platform."""
    if not reference:
        raise BadReference("the reference is empty")
    shown = shorten_reference(reference)
    if is_anchored(reference):
        raise BadReference(f"the reference '{shown}' is an absolute path; it must be relative to the model's directory")
    if "\\" in reference:
        raise BadReference(f"the reference '{shown}' contains a backslash; separate its parts with '/'")
    if has_parent_part(reference):
        raise BadReference(f"the reference '{shown}' contains '..'; it must stay in the model's directory")
    if "\0" in reference:
        raise BadReference(f"the reference {shown!r} contains a NUL character, which is not allowed in file names")
    if reference.endswith("/"):
        raise BadReference(f"the reference '{shown}' names a folder; it must name a file")


def shorten_reference(reference: str) -> str:
    """Shorten a reference for a message. An invalid reference may have any length."""
    return reference if len(reference) <= _MAX_QUOTE else f"{reference[:_MAX_QUOTE]}…"


def find_links(paths: Iterable[str]) -> dict[str, str]:
    """Return the targets of all links that the operating system follows to resolve `paths`, by link.

    As in the operating system, `..` after a link means the parent folder of the link's target. Paths are not normalized.
    """
    links: dict[str, str] = {}
    looked: set[str] = set()
    pending = list(paths)
    while pending:
        path = pending.pop()
        while path and path not in looked:
            looked.add(path)
            folder = os.path.dirname(path)  # noqa: PTH120 - pathlib takes longer, and there may be 30,000 files
            try:
                links[path] = os.readlink(path)  # noqa: PTH115
            except (OSError, ValueError):
                pass  # not a link
            else:
                pending.append(os.path.join(folder, links[path]))  # noqa: PTH118
            path = folder
    return links


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading. Raises OSError.

    Other kinds of files are rejected, because opening a pipe would wait for a writer.
    """
    return io.BufferedReader(open_raw(path))


def open_raw(path: str | Path) -> io.FileIO:
    """Open a regular file like `open_regular`, but without a buffer."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - 30,000 files may be opened
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return io.FileIO(path)


def read_regular(path: str | Path) -> bytes:
    """Return the content of a regular file. Raises OSError like `open_regular`."""
    with open_regular(path) as file:
        return file.read()

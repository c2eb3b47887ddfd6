"""Reads zip archives: stored or deflated members, in the order of the archive but for manifests, which tell the sizes of others."""

from __future__ import annotations

import contextlib
import errno
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from epbuild.archive.members import MANIFEST, Members
from epbuild.archive.refusal import damaged, harmful, quoted

MARKS = (b"PK\x03\x04", b"PK\x05\x06")
"""What a zip archive begins with; the second is that of one without members."""

_PIECE_BYTES = 1 << 18
_MOST_DIRECTORY_BYTES = 16 << 20  # which `zipfile` reads at once, and makes ten times as much of
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})  # the others can ask for gigabytes of memory
_ENCRYPTED = 1 << 0
_UNIX = 3
_WRONG = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, LookupError, OverflowError, NotImplementedError)


def unpack_zip(path: Path, members: Members) -> None:
    """Give every member of the archive to `members`. Raises UnsoundArchive, CannotUnpack, and OSError where it cannot be read."""
    with contextlib.ExitStack() as stack:
        with _reading(members.title, "its directory"):
            file = stack.enter_context(_File(io.FileIO(path)))
            archive = stack.enter_context(zipfile.ZipFile(file))
        infos = archive.infolist()
        for info in sorted(infos, key=lambda info: PurePosixPath(info.orig_filename).name != MANIFEST):
            _check(info, members.title)
            if info.is_dir():
                members.names.folder(info.orig_filename)
            else:
                members.write(info.orig_filename, info.file_size, _pieces(archive, info, members.title))


class _File(io.BufferedReader):
    """A file that is read in pieces."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("It is larger than any")
        return super().read(size)


def _check(info: zipfile.ZipInfo, title: str) -> None:
    """Raises UnsoundArchive for what is no plain file and no folder, or cannot be read here."""
    # A link or a device is told by the mode, which archives from systems without modes do not have.
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise harmful(title, info.orig_filename, "is a link" if kind == stat.S_IFLNK else "is neither a file nor a folder")
    if info.flag_bits & _ENCRYPTED:
        raise harmful(title, info.orig_filename, "is encrypted")
    if info.compress_type not in _METHODS:
        raise harmful(
            title, info.orig_filename, f"is packed by method {info.compress_type}, and only stored and deflated ones are read"
        )


def _pieces(archive: zipfile.ZipFile, info: zipfile.ZipInfo, title: str) -> Iterator[bytes]:
    what = f"the member {quoted(info.orig_filename)}"
    with contextlib.ExitStack() as stack:
        with _reading(title, what):
            file = stack.enter_context(archive.open(info))
        while True:
            with _reading(title, what):
                piece = file.read(_PIECE_BYTES)
            if not piece:
                return
            yield piece


@contextlib.contextmanager
def _reading(title: str, what: str) -> Iterator[None]:
    try:
        yield
    except _WRONG as error:
        raise damaged(title, f"{what} is not whole: {_reason(error)}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # what seeking to a place before the beginning gives
            raise
        raise damaged(title, f"{what} is not whole: it names places outside the archive") from error
    except RuntimeError as error:
        raise damaged(title, f"{what} cannot be read: {error}") from error


def _reason(error: Exception) -> str:
    """What Python says, without the member's name, which the sentence has already."""
    text = str(error).partition(" for file ")[0]
    if text == "File is not a zip file":  # though it begins as one
        return "there is none at the end of the archive"
    return text[:1].lower() + text[1:] if text else type(error).__name__

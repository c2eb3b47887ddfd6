"""Members of a received archive or image: names, files and errors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from epbuild.archive.artifact import extract_own_manifest
from epbuild.core.clone import copy_file
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import NothingToVerify, Problem, VerifyError, escape_controls
from epbuild.core.host import is_windows
from epbuild.core.safepath import BadReference, check_reference, find_unportable_part, is_device
from epbuild.core.shown import ProgressLines
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel

_MAX_NAME_LENGTH = 120
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_PATHS = 200_000
_MAX_PATH_PARTS = 64
_FIRST_SECONDS = 1.0
_NEXT_SECONDS = 10.0


class UnsoundArchive(VerifyError):
    """Error for an archive or image layout that is damaged (EPB619) or has a harmful member (EPB631)."""


class CannotUnpack(VerifyError):
    """Error for an archive that does not fit on this machine's disk (EPB638)."""

    exit_code = 3


def make_corrupt_error(title: str, what: str) -> UnsoundArchive:
    """Return the error for a damaged archive. `title` is the archive's path as given by the user; `what` describes the damage."""
    return UnsoundArchive(Problem("EPB619", what, Path(title), "Copy or download it again."))


def make_unsafe_error(title: str, member: str, why: str) -> UnsoundArchive:
    """Return the error for a member that could do harm. The archive is then not used at all."""
    return UnsoundArchive(
        Problem(
            "EPB631", f"the member {quote_member(member)} {why}", Path(title), "Do not use this archive. It was not unpacked."
        )
    )


def make_unpack_error(title: str, why: str) -> CannotUnpack:
    """Return the error for an archive that does not fit on this machine's disk."""
    hint = "Set TMPDIR (on Windows: TEMP), the folder for temporary files, to a folder with more space."
    return CannotUnpack(Problem("EPB638", f"the archive cannot be unpacked: {why}", Path(title), hint))


def make_nothing_to_verify_error(title: str, why: str) -> NothingToVerify:
    """Return the error for a path on the command line that is not an artifact."""
    return NothingToVerify(Problem("EPB600", f"{title} {why}"))


def quote_member(member: str) -> str:
    """Return a member's name, quoted for a message. The result is printable and of limited length."""
    text = member if len(member) <= _MAX_NAME_LENGTH else f"{member[:_MAX_NAME_LENGTH]}…"
    return f"'{escape_controls(text)}'"


class UnlistedMembers(Struct, frozen=True):
    """Limit on the total size of members that no manifest lists: a number of bytes plus a multiple of the packed size.

    A small multiple suffices, since context binaries and weights hardly compress. Content that compresses well, such as text and zeros, is
    either small or listed in a manifest.
    """

    size: int = 256 << 20
    times: int = 20


UNLISTED = UnlistedMembers()


class Members:
    """Writer that unpacks an archive's members into `folder`.

    `title` is the archive's path as given by the user, and `packed` its size in bytes. A member may have the size that a preceding manifest
    lists. All other bytes count against the limit `unlisted`, so that a small archive cannot fill the disk. A member that is larger than
    the free space is not written at all.
    """

    def __init__(self, folder: Path, title: str, packed: int, lines: ProgressLines, unlisted: UnlistedMembers) -> None:
        self.title = title
        self.names = Names(title)
        self._folder = folder
        self._unlisted = unlisted.size + unlisted.times * packed
        self._listed: dict[str, int] = {}
        self._linked: dict[Path, tuple[str, Path]] = {}
        self._models: list[Path] = []
        self._progress = _Progress(title, lines)

    def write(self, name: str, size: int, pieces: Iterable[bytes], original: Path | None = None) -> Path:
        """Write a member of `size` bytes, and return its path. If possible, create a hard link to `original` instead of reading `pieces`.

        Raises UnsoundArchive, CannotUnpack, and errors of `pieces`.
        """
        path = self.names.add_file(name)
        place = self._folder / path
        with self._translate_disk_errors(name):
            place.parent.mkdir(parents=True, exist_ok=True)
        if original is not None and _link(original, place):
            self._linked[place] = (name, original)
        else:
            self._claim_room(name, size, size - self._listed.get(path, 0))
            with self._translate_disk_errors(name):
                file = place.open("xb", buffering=0)
            with file:
                self._copy(name, size, pieces, file.write)
        self._read_listed_sizes(path, place, size)
        if place.suffix == ".onnx":
            self._models.append(place)
        return place

    def copy_subgraph_data(self) -> None:
        """Replace hard links to external data of subgraphs with copies, since ONNX Runtime rejects data files with several names.

        Must be called after the last member. Raises CannotUnpack.
        """
        for model in self._models if self._linked else ():
            try:
                locations = read_header(model).subgraph_data
            except (MalformedModel, OSError):
                continue
            for place in {Path(os.path.normpath(model.parent / location)) for location in locations} & self._linked.keys():
                name, original = self._linked.pop(place)
                size = place.stat().st_size
                self._claim_room(name, size, size - self._listed.get(place.relative_to(self._folder).as_posix(), 0))
                with self._translate_disk_errors(name):
                    place.unlink()
                    copy_file(original, place)

    def _copy(self, name: str, size: int, pieces: Iterable[bytes], write: Callable[[memoryview], int]) -> None:
        written = 0
        for piece in pieces:
            written += len(piece)
            if written > size:
                raise make_corrupt_error(
                    self.title, f"the member {quote_member(name)} exceeds its declared size of {size:,} bytes"
                )
            rest = memoryview(piece)
            while rest:  # on an almost full disk, only a part may be written
                with self._translate_disk_errors(name):
                    rest = rest[write(rest) :]
            self._progress.add(len(piece))
        if written < size:
            raise make_corrupt_error(self.title, f"the member {quote_member(name)} ends after {written:,} of {size:,} bytes")

    def _claim_room(self, name: str, size: int, unlisted: int) -> None:
        self._unlisted -= max(unlisted, 0)
        if self._unlisted < 0:
            raise make_unsafe_error(
                self.title,
                name,
                f"is too large for such a small archive: {size:,} bytes, which no preceding manifest lists",
            )
        with self._translate_disk_errors(name):
            free = shutil.disk_usage(self._folder).free
        if size > free:
            raise make_unpack_error(self.title, f"the member {quote_member(name)} has {size:,} bytes, but only {free:,} are free")

    def _read_listed_sizes(self, path: str, place: Path, size: int) -> None:
        """If the member is a manifest, remember the sizes that it lists. An invalid manifest is ignored, as `verify` reports it later."""
        if PurePosixPath(path).name != MANIFEST or size > _MAX_MANIFEST_BYTES:
            return
        folder = path.removesuffix(MANIFEST)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            own = extract_own_manifest(json.loads(place.read_bytes()))
            self._listed.update({f"{folder}{file['path']}": int(file["size"]) for file in own["files"]})

    @contextlib.contextmanager
    def _translate_disk_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise make_unpack_error(self.title, f"the member {quote_member(name)} cannot be written: {reason}") from error


class _Progress:
    """Reporter of the unpacked bytes. It reports only if unpacking takes longer than a second."""

    def __init__(self, title: str, lines: ProgressLines) -> None:
        self._title = title
        self._lines = lines
        self._bytes = 0
        self._next = time.monotonic() + _FIRST_SECONDS

    def add(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() >= self._next:
            from rich.filesize import decimal

            self._lines(f"unpacking {self._title}: {decimal(self._bytes)}")
            self._next = time.monotonic() + _NEXT_SECONDS


def _link(original: Path, place: Path) -> bool:
    """Create `place` as a hard link to `original`. Return False if that is impossible."""
    # On Windows, removing a link to a read-only file requires changing the file, which belongs to the user.
    if not os.access(original, os.W_OK):
        return False
    try:
        os.link(original, place)
    except (OSError, NotImplementedError):
        return False
    return True


class Names:
    """Registry of an archive's member names. It ensures that the names are unique and are valid paths on every platform."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._taken: dict[str, tuple[str, bool]] = {}

    def add_file(self, name: str) -> str:
        """Add a file, and return its POSIX path below the folder. Raises UnsoundArchive (EPB631) for an invalid name."""
        path = self._check_path(name, name)
        if self._claim(path, name, folder=False):
            return path
        raise make_unsafe_error(self._title, name, "occurs twice")

    def add_folder(self, name: str) -> None:
        """Add a folder that the archive contains as a member. Raises UnsoundArchive (EPB631) for an invalid name."""
        if (path := name.rstrip("/")) not in ("", ".", "./."):
            self._claim(self._check_path(path, name), name, folder=True)

    def _check_path(self, path: str, name: str) -> str:
        try:
            path.encode()
            check_reference(path)
        except UnicodeEncodeError as error:
            raise make_unsafe_error(self._title, name, "has a name that is not UTF-8") from error
        except BadReference as error:
            raise make_unsafe_error(
                self._title, name, "has an unsafe path; expected a relative path with '/' that stays inside the archive"
            ) from error
        parts = PurePosixPath(path).parts
        # A damaged archive may contain names that Windows cannot create.
        is_invalid = any(map(is_device, parts)) or (is_windows() and find_unportable_part("/".join(parts)) is not None)
        if not parts or len(parts) > _MAX_PATH_PARTS or is_invalid:
            raise make_unsafe_error(self._title, name, "has a name that is not valid on every platform")
        return "/".join(parts)

    def _claim(self, path: str, name: str, *, folder: bool) -> bool:
        """Register a path and its parent folders, and return whether the path is new. Raises UnsoundArchive for a collision."""
        above = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        new = False
        for place, is_folder in (*((parent, True) for parent in reversed(above)), (path, folder)):
            key = _fold_path(place)
            new = key not in self._taken
            other, was_folder = self._taken.setdefault(key, (place, is_folder))
            if other != place:
                raise make_unsafe_error(
                    self._title, name, f"collides with {quote_member(other)} on case-insensitive file systems"
                )
            if was_folder != is_folder:
                raise make_unsafe_error(self._title, name, f"uses {quote_member(place)} as both a file and a folder")
        if len(self._taken) > _MAX_PATHS:
            raise make_unsafe_error(self._title, name, f"exceeds the limit of {_MAX_PATHS:,} files and folders")
        return new


def _fold_path(path: str) -> str:
    """Return a key that is equal for paths that some file systems do not distinguish."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())

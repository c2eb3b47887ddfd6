"""Members of an archive or an image: their names, and the files they become."""

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

from epbuild.archive.artifact import own_manifest
from epbuild.archive.refusal import cannot_unpack, damaged, harmful, quoted
from epbuild.core.clone import copy_file
from epbuild.core.defaults import MANIFEST
from epbuild.core.safepath import BadReference, check_reference, is_device
from epbuild.core.shown import ProgressLines
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.wire import MalformedModel

_MOST_MANIFEST_BYTES = 8 << 20  # what `verify` reads of one

_MOST_PLACES = 200_000
_MOST_PARTS = 64

_FIRST_SECONDS = 1.0
_NEXT_SECONDS = 10.0


class UnlistedMembers(Struct, frozen=True):
    """What those may come to together that no manifest lists: so many bytes, and so many times what is packed.

    Contexts and weights hardly shrink; text and zeros are small, or are listed.
    """

    size: int = 256 << 20
    times: int = 20

    def of(self, packed: int) -> int:
        return self.size + self.times * packed


UNLISTED = UnlistedMembers()


class Members:
    """Writes members below `folder`. `title` is what they come from, as it was asked for, and `packed` how many bytes that has.

    What the manifests among them list may have the sizes that are listed. All else, and what is over these sizes, may come to what is
    `unlisted`, so that no small archive fills a disk; and no member is begun for which there is no room.
    """

    def __init__(self, folder: Path, title: str, packed: int, lines: ProgressLines, unlisted: UnlistedMembers) -> None:
        self.title = title
        self.names = Names(title)
        self._folder = folder
        self._unlisted = unlisted.of(packed)
        self._listed: dict[str, int] = {}
        self._linked: dict[Path, tuple[str, Path]] = {}
        self._models: list[Path] = []
        self._progress = _Progress(title, lines)

    def write(self, name: str, size: int, pieces: Iterable[bytes], original: Path | None = None) -> Path:
        """Write a member of `size` bytes, and return where it lies.

        Where it can be another name of the file `original`, no piece is taken. Raises UnsoundArchive, CannotUnpack, and what `pieces`
        raises.
        """
        path = self.names.file(name)
        place = self._folder / path
        with self._on_disk(name):
            place.parent.mkdir(parents=True, exist_ok=True)
        if original is not None and _linked(original, place):
            self._linked[place] = (name, original)
        else:
            self._claim_room(name, size, size - self._listed.get(path, 0))
            with self._on_disk(name):
                file = place.open("xb", buffering=0)
            with file:
                self._copy(name, size, pieces, file.write)
        self._learn(path, place, size)
        if place.suffix == ".onnx":
            self._models.append(place)
        return place

    def part_subgraph_data(self) -> None:
        """Make files of their own of those that ONNX Runtime refuses as other names of an image's blobs: the data of models' subgraphs.

        To be called once all members are there. Other files are left for `verify` to judge. Raises CannotUnpack.
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
                with self._on_disk(name):
                    place.unlink()
                    copy_file(original, place)

    def _copy(self, name: str, size: int, pieces: Iterable[bytes], write: Callable[[memoryview], int]) -> None:
        written = 0
        for piece in pieces:
            written += len(piece)
            if written > size:
                raise damaged(self.title, f"the member {quoted(name)} has more than the {size:,} bytes that it should have")
            rest = memoryview(piece)
            while rest:  # a disk that is almost full takes a part
                with self._on_disk(name):
                    rest = rest[write(rest) :]
            self._progress.add(len(piece))
        if written < size:
            raise damaged(self.title, f"the member {quoted(name)} ends after {written:,} of {size:,} bytes")

    def _claim_room(self, name: str, size: int, unlisted: int) -> None:
        self._unlisted -= max(unlisted, 0)
        if self._unlisted < 0:
            raise harmful(
                self.title, name, f"would have {size:,} bytes, which no manifest before it lists: too many for so small a file"
            )
        with self._on_disk(name):
            free = shutil.disk_usage(self._folder).free
        if size > free:
            raise cannot_unpack(self.title, f"the member {quoted(name)} has {size:,} bytes, and there is room for {free:,}")

    def _learn(self, path: str, place: Path, size: int) -> None:
        """Note the sizes of others that a manifest lists; one that lists none, or nonsense, is for `verify` to judge."""
        if PurePosixPath(path).name != MANIFEST or size > _MOST_MANIFEST_BYTES:
            return
        folder = path.removesuffix(MANIFEST)
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            own = own_manifest(json.loads(place.read_bytes()))
            self._listed.update({f"{folder}{file['path']}": int(file["size"]) for file in own["files"]})

    @contextlib.contextmanager
    def _on_disk(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise cannot_unpack(self.title, f"the member {quoted(name)} cannot be written: {reason}") from error


class _Progress:
    """Reports how much has been unpacked, once it takes longer than a user would wait without a word."""

    def __init__(self, title: str, lines: ProgressLines) -> None:
        self._title = title
        self._lines = lines
        self._bytes = 0
        self._next = time.monotonic() + _FIRST_SECONDS

    def add(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() >= self._next:
            from rich.filesize import decimal

            self._lines.report(f"unpacking {self._title}: {decimal(self._bytes)}")
            self._next = time.monotonic() + _NEXT_SECONDS


def _linked(original: Path, place: Path) -> bool:
    """Whether `place` is now another name of the file `original`."""
    # To remove one name of a read-only file on Windows, the file has to be changed first, and it is not owned.
    if not os.access(original, os.W_OK):
        return False
    try:
        os.link(original, place)
    except (OSError, NotImplementedError):
        return False
    return True


class Names:
    """The names that the members of one archive have, as they come: paths on every platform, each once; `title` is the archive."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._taken: dict[str, tuple[str, bool]] = {}

    def file(self, name: str) -> str:
        """The POSIX path of a file below the folder. Raises UnsoundArchive (EPB631) for a name that it cannot have."""
        path = self._path(name, name)
        if self._claim(path, name, folder=False):
            return path
        raise harmful(self._title, name, "is there twice")

    def folder(self, name: str) -> None:
        """A folder that is a member itself, which those of files need not be. Raises UnsoundArchive (EPB631)."""
        if (path := name.rstrip("/")) not in ("", ".", "./."):
            self._claim(self._path(path, name), name, folder=True)

    def _path(self, path: str, name: str) -> str:
        try:
            path.encode()
            check_reference(path)
        except UnicodeEncodeError as error:
            raise harmful(self._title, name, "has a name that is not UTF-8") from error
        except BadReference as error:
            raise harmful(self._title, name, "is not named by a path below a folder, written with '/'") from error
        parts = PurePosixPath(path).parts
        if not parts or len(parts) > _MOST_PARTS or any(map(is_device, parts)):
            raise harmful(self._title, name, "has a name that not every platform has for a file")
        return "/".join(parts)

    def _claim(self, path: str, name: str, *, folder: bool) -> bool:
        """Whether the path is new; the folders that lead to it are its too."""
        above = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        new = False
        for place, is_folder in (*((parent, True) for parent in reversed(above)), (path, folder)):
            key = _alike(place)
            new = key not in self._taken
            other, was_folder = self._taken.setdefault(key, (place, is_folder))
            if other != place:
                raise harmful(self._title, name, f"and {quoted(other)} are one where upper and lower case are the same")
            if was_folder != is_folder:
                raise harmful(self._title, name, f"makes a file and a folder of {quoted(place)}")
        if len(self._taken) > _MOST_PLACES:
            raise harmful(self._title, name, f"is one of more than {_MOST_PLACES:,} files and folders")
        return new


def _alike(path: str) -> str:
    """What names have in common that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())

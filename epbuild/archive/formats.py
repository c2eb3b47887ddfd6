"""Archive formats by their names, and archives written in constant memory.

The same bytes come from every user on every machine. A zip archive of stored members depends on its files alone. What is compressed depends
on the version of libzstd or zlib too, which `compressor` names; that all processors get the same from one version is what libzstd's makers
aim at, not what they promise (their issue 4099).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Protocol

from epbuild.archive import tar, zstd
from epbuild.archive import zip as zipped
from epbuild.archive.artifact import Artifact, Copy, own_manifest, wrong_size
from epbuild.archive.members import Members
from epbuild.core.clone import write_pieces
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob, Hasher, Write
from epbuild.core.errors import StepId
from epbuild.core.ring import Ring
from epbuild.core.safepath import open_regular
from epbuild.recipe.model import CompressionMethod

ArchiveName = Literal["zip", "tar.zst"]

_MOST_MANIFEST_BYTES = zipped.GATHERED_BYTES


class ArchiveFormat(Protocol):
    """A format of archives, which a module here implements."""

    MARKS: tuple[bytes, ...]
    """What an archive may begin with."""

    def write(self, artifacts: Sequence[Artifact], copy: Copy, put: Write, level: int | None, step: StepId | None) -> None:
        """Write the bytes of an archive of `artifacts`, in their order, to `put`. Raises what `copy` and `put` raise.

        Raises EnvironmentFailure when the package that compresses is missing.
        """

    def first_member(self, file: BinaryIO, most: int) -> tuple[str, bytes] | None:
        """The name and content of the first member that `write` may have written; None if it has over `most` bytes.

        Reads no more than that member. Raises OSError, and EnvironmentFailure as `write` does.
        """

    def unpack(self, path: Path, members: Members) -> None:
        """Write every member of an archive to `members`.

        Raises UnsoundArchive, CannotUnpack, OSError where it cannot be read, and EnvironmentFailure as `write` does.
        """


FORMATS: Mapping[ArchiveName, ArchiveFormat] = MappingProxyType({"zip": zipped, "tar.zst": tar})
"""Every format; a further one is a further module."""


class ByteSink(Protocol):
    """Takes all the bytes that it is given, as a buffered file does."""

    def write(self, data: memoryview, /) -> object: ...


def write_archive(
    name: ArchiveName,
    artifacts: Sequence[Artifact],
    copy: Copy,
    destination: ByteSink,
    *,
    level: int | None = None,
    step: StepId | None = None,
) -> Blob:
    """Write an archive of `artifacts`, in whatever order they are given; returns its digest and its size.

    `level` is that of zstd (None: its default), or that of deflate for a zip archive (None: its members are stored as they are). The
    manifest comes first, so that users of the archive find it without reading on. Raises EnvironmentFailure when the package for zstd is
    missing, BuildError when an artifact does not have its size, and what `copy` and the destination's `write` raise; what was written
    until then is of no use.
    """
    hasher = Hasher()

    def seal(data: memoryview) -> None:
        hasher.update(data)
        write_pieces(destination.write, data)

    with Ring(seal, "archive") as sink:
        FORMATS[name].write(sorted(artifacts, key=_order), _measured(copy, step), sink.put, level, step)
    return hasher.blob


def compressor(method: CompressionMethod, step: StepId | None = None) -> str:
    """What decides on the bytes that a method makes: its library, with the version. Raises EnvironmentFailure when it is missing."""
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}" if method == "deflate" else zstd.version(step)


def format_of(mark: bytes) -> ArchiveFormat | None:
    """The format of a file that begins with `mark`, four bytes; None where it is not an archive."""
    return next((found for found in FORMATS.values() if mark in found.MARKS), None)


def listed(path: Path) -> Mapping[str, Any] | None:
    """The manifest of the archive at `path`, if it is one that epbuild made; reads no more than its beginning.

    Raises EnvironmentFailure when the package for zstd is missing and the file is compressed by it.
    """
    try:
        with open_regular(path) as file:
            found = format_of(file.read(4))
            file.seek(0)
            member = found.first_member(file, _MOST_MANIFEST_BYTES) if found is not None else None
        if member is None or PurePosixPath(member[0]).name != MANIFEST:
            return None
        document: dict[str, Any] = json.loads(member[1])
        own = own_manifest(document)
        return document if isinstance(own["files"], list) and isinstance(own["format"], int) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _order(artifact: Artifact) -> tuple[bool, bool, tuple[str, ...]]:
    return artifact.path != MANIFEST, artifact.role != "manifest", PurePosixPath(artifact.path).parts


def _measured(copy: Copy, step: StepId | None) -> Copy:
    """`copy`, which fails unless what it writes comes to the size that the archive's headers have."""

    def measured(artifact: Artifact, write: Write) -> None:
        size = 0

        def count(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)
            if size > artifact.size:
                raise wrong_size(artifact, step)
            write(piece)

        copy(artifact, count)
        if size != artifact.size:
            raise wrong_size(artifact, step)

    return measured

"""Archive formats by name, and a writer that uses constant memory.

Archives are reproducible on all machines. The bytes of a zip archive of stored members depend only on its files. Compressed bytes also
depend on the version of libzstd or zlib, which `find_compressor` returns. The authors of libzstd intend that one version produces the same
bytes on all processors, but they do not guarantee it (their issue 4099).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Protocol

from epbuild.archive import tar, zstd
from epbuild.archive import zip as zipped
from epbuild.archive.artifact import Artifact, Copy, extract_own_manifest, make_size_error
from epbuild.archive.members import Members
from epbuild.core.clone import write_pieces
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob, Hasher, Write
from epbuild.core.errors import StepId
from epbuild.core.ring import Ring
from epbuild.core.safepath import open_regular
from epbuild.recipe.model import CompressionMethod

ArchiveName = Literal["zip", "tar.zst"]

MAX_MANIFEST_BYTES = zipped.GATHERED_BYTES


class ArchiveFormat(Protocol):
    """Format of archives. Each format is a module of this package."""

    MARKS: tuple[bytes, ...]
    """Magic numbers: the first four bytes of an archive."""

    def write(self, artifacts: Sequence[Artifact], copy: Copy, put: Write, level: int | None, step: StepId | None) -> None:
        """Write an archive of `artifacts` in the given order, by calls of `put`.

        Raises errors of `copy` and `put`, and EnvironmentFailure if the compression package is missing.
        """

    def read_first_members(self, file: BinaryIO, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
        """Yield the name and content of the first members, until one is not as `write` writes it.

        The last content is None if it exceeds `max_bytes` or is damaged. Members that the caller does not request are not read. Raises
        OSError, and EnvironmentFailure as `write` does.
        """

    def unpack(self, path: Path, members: Members) -> None:
        """Write every member of an archive to `members`.

        Raises UnsoundArchive, CannotUnpack, OSError if the archive cannot be read, and EnvironmentFailure as `write` does.
        """


FORMATS: Mapping[ArchiveName, ArchiveFormat] = MappingProxyType({"zip": zipped, "tar.zst": tar})
"""All archive formats. To add a format, write a module with the members of `ArchiveFormat`, and add the module here."""


class ByteSink(Protocol):
    """Writer that never writes only a part of `data`, like a buffered file."""

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
    """Write an archive of `artifacts`, which may be in any order, and return its digest and size.

    `level` is the level of zstd (None: the default), or of deflate in a zip archive (None: members are stored). The manifest is the first
    member, so that readers find it at the beginning. Raises EnvironmentFailure if the zstd package is missing, BuildError if an artifact
    does not have the declared size, and errors of `copy` and the destination's `write`. After an error, the written bytes are useless.
    """
    hasher = Hasher()

    def append(data: memoryview) -> None:
        hasher.update(data)
        write_pieces(destination.write, data)

    with Ring(append, "archive") as sink:
        FORMATS[name].write(sorted(artifacts, key=_sort_key), _check_size(copy, step), sink.put, level, step)
    return hasher.blob


def find_compressor(method: CompressionMethod, step: StepId | None = None) -> str:
    """Return the name and version of the library that implements a compression method. Compressed bytes depend on both.

    Raises EnvironmentFailure if the library is missing.
    """
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}" if method == "deflate" else zstd.get_version(step)


def find_format(mark: bytes) -> ArchiveFormat | None:
    """Return the archive format of a file whose first four bytes are `mark`, or None if the file is not an archive."""
    return next((found for found in FORMATS.values() if mark in found.MARKS), None)


def read_listed(path: Path) -> Mapping[str, Any] | None:
    """Return the manifest at the beginning of an archive, or None if epbuild did not write the archive.

    Raises EnvironmentFailure if the file is compressed with zstd and the zstd package is missing.
    """
    try:
        _, data = next(read_manifests(path), ("", None))
        if data is None:
            return None
        document: dict[str, Any] = json.loads(data)
        own = extract_own_manifest(document)
        return document if isinstance(own["files"], list) and isinstance(own["format"], int) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def read_manifests(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """Yield the names and contents of the manifests at the beginning of an archive. Nothing is yielded for files of other programs.

    The last content is None if it exceeds `MAX_MANIFEST_BYTES`, is damaged or has the name of an earlier one. Raises OSError, and
    EnvironmentFailure if the file is compressed with zstd and the zstd package is missing.
    """
    names = set()
    with open_regular(path) as file:
        found = find_format(file.read(4))
        file.seek(0)
        for name, data in found.read_first_members(file, MAX_MANIFEST_BYTES) if found is not None else ():
            if PurePosixPath(name).name != MANIFEST:
                return
            if name in names:
                yield name, None
                return
            names.add(name)
            yield name, data


def _sort_key(artifact: Artifact) -> tuple[bool, bool, tuple[str, ...]]:
    return artifact.path != MANIFEST, artifact.role != "manifest", PurePosixPath(artifact.path).parts


def _check_size(copy: Copy, step: StepId | None) -> Copy:
    """Return a function like `copy` that raises BuildError unless exactly the declared number of bytes is written."""

    def copy_checked(artifact: Artifact, write: Write) -> None:
        size = 0

        def count(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)
            if size > artifact.size:
                raise make_size_error(artifact, step)
            write(piece)

        copy(artifact, count)
        if size != artifact.size:
            raise make_size_error(artifact, step)

    return copy_checked

"""Archive formats by name, and archives written in constant memory.

All users get the same bytes on all machines. A zip archive of stored members depends on its files alone. Compressed bytes depend on the
version of libzstd or zlib too, which `compressor` names. That one version compresses alike on all processors is the aim of libzstd's
authors, but no promise (their issue 4099).
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

_MAX_MANIFEST_BYTES = zipped.GATHERED_BYTES


class ArchiveFormat(Protocol):
    """Format of archives; each is a module of this package."""

    MARKS: tuple[bytes, ...]
    """Magic numbers: the first four bytes of an archive."""

    def write(self, artifacts: Sequence[Artifact], copy: Copy, put: Write, level: int | None, step: StepId | None) -> None:
        """Write an archive of `artifacts`, in their order, to `put`.

        Raises what `copy` and `put` raise, and EnvironmentFailure if the compression package is missing.
        """

    def first_member(self, file: BinaryIO, most: int) -> tuple[str, bytes] | None:
        """Read the name and content of the first member; None if `write` does not write such a member, or if it has over `most` bytes.

        Nothing after that member is read. Raises OSError, and EnvironmentFailure as `write` does.
        """

    def unpack(self, path: Path, members: Members) -> None:
        """Write every member of an archive to `members`.

        Raises UnsoundArchive, CannotUnpack, OSError if the archive cannot be read, and EnvironmentFailure as `write` does.
        """


FORMATS: Mapping[ArchiveName, ArchiveFormat] = MappingProxyType({"zip": zipped, "tar.zst": tar})
"""All formats; a new one is a new module."""


class ByteSink(Protocol):
    """Writer that accepts all bytes of a call, like a buffered file."""

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
    """Write an archive of `artifacts`, given in any order, and return its digest and size.

    `level` is that of zstd (None: its default), or of deflate in a zip archive (None: members are stored). The manifest comes first, so
    that readers find it at the beginning. Raises EnvironmentFailure if the package for zstd is missing, BuildError if an artifact does
    not have its size, and what `copy` and the destination's `write` raise. The bytes written until then are useless.
    """
    hasher = Hasher()

    def seal(data: memoryview) -> None:
        hasher.update(data)
        write_pieces(destination.write, data)

    with Ring(seal, "archive") as sink:
        FORMATS[name].write(sorted(artifacts, key=_order), _check_size(copy, step), sink.put, level, step)
    return hasher.blob


def find_compressor(method: CompressionMethod, step: StepId | None = None) -> str:
    """Return the library of a method and its version, which its bytes depend on. Raises EnvironmentFailure if it is missing."""
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}" if method == "deflate" else zstd.get_version(step)


def format_of(mark: bytes) -> ArchiveFormat | None:
    """Return the format of a file by its first four bytes; None if it is not an archive."""
    return next((found for found in FORMATS.values() if mark in found.MARKS), None)


def read_listed(path: Path) -> Mapping[str, Any] | None:
    """Read the manifest at the beginning of an archive; None if epbuild did not write the archive.

    Raises EnvironmentFailure if the file is compressed by zstd and that package is missing.
    """
    try:
        with open_regular(path) as file:
            found = format_of(file.read(4))
            file.seek(0)
            member = found.first_member(file, _MAX_MANIFEST_BYTES) if found is not None else None
        if member is None or PurePosixPath(member[0]).name != MANIFEST:
            return None
        document: dict[str, Any] = json.loads(member[1])
        own = extract_own_manifest(document)
        return document if isinstance(own["files"], list) and isinstance(own["format"], int) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _order(artifact: Artifact) -> tuple[bool, bool, tuple[str, ...]]:
    return artifact.path != MANIFEST, artifact.role != "manifest", PurePosixPath(artifact.path).parts


def _check_size(copy: Copy, step: StepId | None) -> Copy:
    """Return `copy` with a check: it fails unless it writes as many bytes as the archive's headers say."""

    def measured(artifact: Artifact, write: Write) -> None:
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

    return measured

"""Compression with zstd: its optional package, and compressed files of an image.

Compression uses one thread, so the compressed bytes depend only on the content, the level and the version of libzstd. With three threads,
they differ between runs (measured with libzstd 1.5.7).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from epbuild.archive.artifact import Artifact, Copy, Role, make_size_error
from epbuild.core.digest import Hasher
from epbuild.core.errors import EnvironmentFailure, Problem, StepId

MARK = b"\x28\xb5\x2f\xfd"
"""Magic number of a zstd frame."""

LEVEL = 3
"""Default compression level, which is also zstd's default."""

SUFFIX = ".zst"
"""Suffix of a compressed file. It shows users of other tools that the file is compressed."""

_UNCOMPRESSED_ROLES: frozenset[Role] = frozenset({"manifest", "provenance", "bom"})
"""Roles of small files that are never compressed, so that tools can read them directly."""


def import_zstandard(step: StepId | None = None) -> Any:
    """Import the package zstandard. Raises EnvironmentFailure (EPB425) if it is missing."""
    try:
        import zstandard
    except ImportError as error:
        message = "archives compressed with zstd need the package zstandard, which is not installed in epbuild's environment"
        raise EnvironmentFailure(Problem("EPB425", message, step, "Install it: pip install 'epbuild[archive]'.")) from error
    return zstandard


def make_compressor(level: int | None, step: StepId | None) -> Any:
    """Return a compressor. If `level` is None, use the default level. Raises EnvironmentFailure (EPB425) if the zstd package is missing."""
    return import_zstandard(step).ZstdCompressor(level=LEVEL if level is None else level, write_checksum=True)


def get_version(step: StepId | None) -> str:
    """Return the versions that compressed bytes depend on. Raises EnvironmentFailure (EPB425) if the zstd package is missing."""
    zstandard = import_zstandard(step)
    return f"zstandard {zstandard.__version__}, libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"


def extract_reason(error: Exception) -> str:
    """Return the reason in an error of libzstd, without function names."""
    return str(error).rpartition(": ")[2]


class Compressed(NamedTuple):
    """File of an output (`artifact`), and the compressed file that replaces it in an image (`packed`)."""

    artifact: Artifact
    packed: Artifact


def is_compressed(role: Role) -> bool:
    """Return whether files of a role are compressed in a compressed image."""
    return role not in _UNCOMPRESSED_ROLES


def compress(artifact: Artifact, copy: Copy, level: int, folder: Path, step: StepId | None = None) -> Compressed:
    """Compress an artifact into a file below `folder`. The file is named by the artifact's digest, so equal artifacts share a file.

    Raises OSError, errors of `copy`, BuildError if the artifact does not have the declared size, and EnvironmentFailure if the zstd package
    is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / artifact.sha256
    hasher = Hasher()
    stream = make_compressor(level, step).compressobj(size=artifact.size)
    with path.open("wb") as file:

        def write(piece: bytes) -> None:
            hasher.update(piece)
            file.write(piece)

        try:
            copy(artifact, lambda piece: write(stream.compress(piece)))
            write(stream.flush())
        except import_zstandard(step).ZstdError as error:  # the content does not have the declared size
            raise make_size_error(artifact, step) from error
    return Compressed(artifact, Artifact(f"{artifact.path}{SUFFIX}", artifact.role, hasher.size, hasher.blob.digest, path))

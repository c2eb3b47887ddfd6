"""Compression with zstd: its optional package, and compressed files of an image.

Compression uses one thread, so its bytes depend only on the content, the level and the version of libzstd. With three threads, the bytes
differ between runs (measured with libzstd 1.5.7).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from epbuild.archive.artifact import Artifact, Copy, Role, make_size_error
from epbuild.core.digest import Hasher
from epbuild.core.errors import EnvironmentFailure, Problem, StepId

MARK = b"\x28\xb5\x2f\xfd"
"""Magic number of a frame."""

LEVEL = 3
"""zstd's own default."""

SUFFIX = ".zst"
"""Suffix of a compressed file. It tells users who fetch the file with other tools that it is compressed."""

_PLAIN: frozenset[Role] = frozenset({"manifest", "provenance", "bom"})
"""Roles of small files that are never compressed, as tools read them without unpacking the rest."""


def import_zstandard(step: StepId | None = None) -> Any:
    """Import the package zstandard. Raises EnvironmentFailure (EPB425) if it is missing."""
    try:
        import zstandard
    except ImportError as error:
        message = "archives compressed with zstd need the package zstandard, which is not installed in epbuild's environment"
        raise EnvironmentFailure(Problem("EPB425", message, step, "Install it: pip install 'epbuild[archive]'.")) from error
    return zstandard


def make_compressor(level: int | None = None, step: StepId | None = None) -> Any:
    """Return a compressor; `level` None is the default. Raises EnvironmentFailure (EPB425) if the package is missing."""
    return import_zstandard(step).ZstdCompressor(level=LEVEL if level is None else level, write_checksum=True)


def get_version(step: StepId | None = None) -> str:
    """Return the versions that compressed bytes depend on. Raises EnvironmentFailure (EPB425) if the package is missing."""
    zstandard = import_zstandard(step)
    return f"zstandard {zstandard.__version__}, libzstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"


def extract_reason(error: Exception) -> str:
    """Return the reason in an error of libzstd, without the names of its functions."""
    return str(error).rpartition(": ")[2]


class Compressed(NamedTuple):
    """File of an output, and the compressed file that replaces it in an image."""

    artifact: Artifact
    packed: Artifact


def is_compressed(role: Role) -> bool:
    """Return whether files of a role are compressed in a compressed image."""
    return role not in _PLAIN


def compress(artifact: Artifact, copy: Copy, level: int, folder: Path, step: StepId | None = None) -> Compressed:
    """Compress an artifact into a file below `folder`, named by its digest, so that equal artifacts share one file.

    Raises what `copy` raises, OSError, BuildError if the artifact does not have its size, and EnvironmentFailure if the package for zstd
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

"""Compression by zstd: its optional package, and compressed files of an image.

One thread compresses: then the bytes depend on the content, the level and the version of libzstd alone. What three threads make differs
from one time to the next (measured with libzstd 1.5.7).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from epbuild.archive.artifact import Artifact, Copy, Role, wrong_size
from epbuild.core.digest import Hasher
from epbuild.core.errors import EnvironmentFailure, Problem, StepId

MARK = b"\x28\xb5\x2f\xfd"
"""What a frame begins with."""

LEVEL = 3
"""zstd's own default."""

SUFFIX = ".zst"
"""What the name of a compressed file ends in, so that users who fetch one without knowing epbuild see what it is."""

_PLAIN: frozenset[Role] = frozenset({"manifest", "provenance", "bom"})
"""What stays as it is: small files that are read without unpacking the rest."""


def package(step: StepId | None = None) -> Any:
    """The package that compresses and decompresses. Raises EnvironmentFailure (EPB425) when it is missing."""
    try:
        import zstandard
    except ImportError as error:
        message = "an archive that is compressed by zstd needs the package zstandard, which is not installed beside epbuild"
        raise EnvironmentFailure(Problem("EPB425", message, step, "Install it: pip install 'epbuild[archive]'.")) from error
    return zstandard


def compressor(level: int | None = None, step: StepId | None = None) -> Any:
    """What compresses, at a level (None: its default). Raises EnvironmentFailure (EPB425) when the package is missing."""
    return package(step).ZstdCompressor(level=LEVEL if level is None else level, write_checksum=True)


def version(step: StepId | None = None) -> str:
    """The library that decides on the bytes, with its version. Raises EnvironmentFailure (EPB425) when it is missing."""
    found = package(step)
    return f"zstandard {found.__version__}, libzstd {'.'.join(map(str, found.ZSTD_VERSION))}"


def reason(error: Exception) -> str:
    """Why libzstd failed, without the names of its functions."""
    return str(error).rpartition(": ")[2]


class Compressed(NamedTuple):
    """A file of an output, and the compressed one in its place: its name, size and digest."""

    artifact: Artifact
    packed: Artifact


def is_compressed(role: Role) -> bool:
    """Return whether files of a role are compressed in an image whose files are."""
    return role not in _PLAIN


def compress(artifact: Artifact, copy: Copy, level: int, folder: Path, step: StepId | None = None) -> Compressed:
    """Compress an artifact into a file below `folder`, which is named by its digest: equal artifacts are one file.

    Raises what `copy` raises, OSError, BuildError where an artifact does not have its size, and EnvironmentFailure when the package for
    zstd is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / artifact.sha256
    hasher = Hasher()
    packer = compressor(level, step).compressobj(size=artifact.size)
    with place.open("wb") as file:

        def write(piece: bytes) -> None:
            hasher.update(piece)
            file.write(piece)

        try:
            copy(artifact, lambda piece: write(packer.compress(piece)))
            write(packer.flush())
        except package(step).ZstdError as error:  # which was given the size
            raise wrong_size(artifact, step) from error
    return Compressed(artifact, Artifact(f"{artifact.path}{SUFFIX}", artifact.role, hasher.size, hasher.blob.digest, place))

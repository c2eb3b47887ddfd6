"""Files of an image made smaller by zstd, each for itself and in constant memory.

One thread compresses: then the bytes depend on the content, the level and the version of libzstd alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from epbuild.archive.content import Content, Pour, Role
from epbuild.archive.packs import zstandard_package, zstd_compressor
from epbuild.core.errors import BuildError, Problem, StepId

SUFFIX = ".zst"
"""What the name of such a file ends in, so that whoever fetches one without knowing epbuild sees what it is."""

_PLAIN: frozenset[Role] = frozenset({"manifest", "provenance", "bom"})
"""What stays as it is: small files that are read without unpacking the rest."""


class Squeezed(NamedTuple):
    """A file of an output, and the compressed one that stands for it: its name, size and digest."""

    content: Content
    packed: Content


def is_squeezed(content: Content) -> bool:
    """Whether a file is compressed in an image that is."""
    return content.role not in _PLAIN


def squeezed(content: Content, sha256: str, size: int, file: Path | None = None) -> Squeezed:
    """A content, and the compressed file of that digest and size."""
    return Squeezed(content, Content(f"{content.path}{SUFFIX}", content.role, size, sha256, file))


def squeeze(content: Content, pour: Pour, level: int, folder: Path, step: StepId | None = None) -> Squeezed:
    """Compress a content into a file below `folder`, which is named by its digest: equal contents are one file.

    Raises what `pour` raises, OSError, BuildError where a content does not have its size, and EnvironmentFailure when the package for
    zstd is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / content.sha256
    digest, size = hashlib.sha256(), 0
    compressor = zstd_compressor(level, step).compressobj(size=content.size)
    with place.open("wb") as file:

        def write(piece: bytes) -> None:
            nonlocal size
            digest.update(piece)
            size += len(piece)
            file.write(piece)

        try:
            pour(content, lambda piece: write(compressor.compress(piece)))
            write(compressor.flush())
        except zstandard_package(step).ZstdError as error:  # which is told the size
            message = f"the file {content.path} changed while it was packed: it no longer has {content.size} bytes"
            raise BuildError(Problem("EPB415", message, step, "Nothing was kept; run the build again.")) from error
    return squeezed(content, digest.hexdigest(), size, place)

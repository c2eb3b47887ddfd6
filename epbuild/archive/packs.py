"""Archives: an output's files as one file, the same bytes from every user on every machine, written in constant memory as they are read.

A zip archive of stored members depends on its files alone. What is compressed depends on the version of libzstd or zlib too, which
`compressor` names; that all processors get the same from one version is what libzstd's makers aim at, not what they promise (their issue
4099). One thread compresses: what three make differs from one time to the next (measured with libzstd 1.5.7).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from epbuild.archive import tar_writer as tarred
from epbuild.archive import zip_writer as zipped
from epbuild.archive.content import Content, Pour, Write
from epbuild.archive.stage import Stage
from epbuild.core.errors import BuildError, EnvironmentFailure, Problem, StepId
from epbuild.output.owned import MANIFEST
from epbuild.recipe.model import CompressionMethod

Form = Literal["zip", "tar.zst"]

LEVEL = 3
"""zstd's own default."""

_MOST_MANIFEST_BYTES = zipped.GATHERED_BYTES
_ZIP_MARK, _ZSTD_MARK = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 1 << 16

# Linux keeps what comes in one write in one piece of memory; see epbuild/core/content.py.
_WRITE_BYTES = 1 << 16


class Destination(Protocol):
    """Takes all the bytes that it is given, as a buffered file does."""

    def write(self, data: memoryview, /) -> object: ...


@dataclass(frozen=True)
class Archive:
    """A finished archive: its SHA-256 in hex, and its size in bytes."""

    digest: str
    size: int


def write_archive(
    form: Form,
    contents: Sequence[Content],
    pour: Pour,
    destination: Destination,
    *,
    level: int | None = None,
    step: StepId | None = None,
) -> Archive:
    """Write an archive of `contents`, in whatever order they are given.

    `level` is that of zstd (None: its default), or that of deflate for a zip archive (None: its members are stored as they are).

    The manifest comes first, so that whoever has the archive finds it without reading on. Raises EnvironmentFailure when the package for
    zstd is missing, BuildError when a content does not have its size, and what `pour` and the destination's `write` raise; what was
    written until then is of no use.
    """
    ordered, measured = sorted(contents, key=_place), _measured(pour, step)
    seal = _Seal(destination)
    with Stage(seal.write, "archive") as sink:
        if form == "zip":
            zipped.write_zip(ordered, measured, sink.put, level=level)
        else:
            squeezer = zstd_compressor(level, step).compressobj()
            with Stage(lambda piece: sink.put(squeezer.compress(piece)), "zstd") as squeeze:
                tarred.write_tar(ordered, measured, squeeze.put)
            sink.put(squeezer.flush())
    return seal.archive


def zstd_compressor(level: int | None = None, step: StepId | None = None) -> Any:
    """What compresses by zstd, at a level (None: its default). Raises EnvironmentFailure (EPB425) when the package is missing."""
    return zstandard_package(step).ZstdCompressor(level=LEVEL if level is None else level, write_checksum=True)


def compressor(method: CompressionMethod, step: StepId | None = None) -> str:
    """What decides on the bytes that a method makes: its library, with the version. Raises EnvironmentFailure when it is missing."""
    if method == "deflate":
        return f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
    package = zstandard_package(step)
    return f"zstandard {package.__version__}, libzstd {'.'.join(map(str, package.ZSTD_VERSION))}"


def zstandard_package(step: StepId | None = None) -> Any:
    """The package that compresses and decompresses. Raises EnvironmentFailure (EPB425) when it is missing."""
    try:
        import zstandard
    except ImportError as error:
        message = "an archive that is compressed by zstd needs the package zstandard, which is not installed beside epbuild"
        raise EnvironmentFailure(Problem("EPB425", message, step, "Install it: pip install 'epbuild[archive]'.")) from error
    return zstandard


def listed(path: Path) -> Mapping[str, Any] | None:
    """The manifest of the archive at `path`, if it is one that epbuild made; reads no more than its beginning.

    Raises EnvironmentFailure when the package for zstd is missing and the file is compressed by it.
    """
    try:
        found = _first_member(path)
        if found is None or PurePosixPath(found[0]).name != MANIFEST:
            return None
        document = json.loads(found[1])
        # That of a model package is ONNX Runtime's, and epbuild's is where ONNX Runtime does not look.
        own = document if "files" in document else document["additional_metadata"]["epbuild"]
        return document if isinstance(own["files"], list) and isinstance(own["format"], int) else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


class _Seal:
    """Writes to a destination, and names what was written."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._digest = hashlib.sha256()
        self._size = 0

    @property
    def archive(self) -> Archive:
        return Archive(self._digest.hexdigest(), self._size)

    def write(self, data: memoryview) -> None:
        self._digest.update(data)
        for start in range(0, len(data), _WRITE_BYTES):
            self._destination.write(data[start : start + _WRITE_BYTES])
        self._size += len(data)


def _place(content: Content) -> tuple[bool, bool, tuple[str, ...]]:
    return content.path != MANIFEST, content.role != "manifest", PurePosixPath(content.path).parts


def _measured(pour: Pour, step: StepId | None) -> Pour:
    """`pour`, which fails unless what it gives comes to the size that the archive's headers say."""

    def measured(content: Content, write: Write) -> None:
        size = 0

        def count(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)
            if size > content.size:
                raise _wrong_size(content, step)
            write(piece)

        pour(content, count)
        if size != content.size:
            raise _wrong_size(content, step)

    return measured


def _wrong_size(content: Content, step: StepId | None) -> BuildError:
    message = f"the file {content.path} changed while it was packed: it no longer has {content.size} bytes"
    return BuildError(Problem("EPB415", message, step, "Nothing was kept; run the build again."))


def _first_member(path: Path) -> tuple[str, bytes] | None:
    """Raises OSError."""
    with path.open("rb") as file:
        mark = file.read(len(_ZIP_MARK))
        file.seek(0)
        if mark == _ZIP_MARK:
            return zipped.first_member(file, _MOST_MANIFEST_BYTES)
        if mark != _ZSTD_MARK:
            return None
        package = zstandard_package()
        try:
            return tarred.first_member(
                package.ZstdDecompressor().stream_reader(file, read_size=_HEAD_BYTES), _MOST_MANIFEST_BYTES
            )
        except package.ZstdError:
            return None

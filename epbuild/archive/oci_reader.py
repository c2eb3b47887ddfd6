"""Reads OCI image layouts: an image whose layers are files, as epbuild and ORAS make it, by the OCI image specification 1.1."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from epbuild.archive.members import MANIFEST, Members
from epbuild.archive.oci_writer import CONTENT_DIGEST, CONTENT_SIZE, MANIFEST_TYPE, TITLE, ZSTD_TYPE
from epbuild.archive.packs import zstandard_package
from epbuild.archive.refusal import damaged, nothing, quoted
from epbuild.core.safepath import real_path

LAYOUT, INDEX = "oci-layout", "index.json"
"""The files that make a folder an image layout."""

_PIECE_BYTES = 1 << 18
_MOST_BYTES = 16 << 20  # of an index or a manifest: registries take 4 MiB
_SUFFIX = ".zst"  # of the title of a compressed layer
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class _Blob(NamedTuple):
    """What names a blob: its SHA-256 in hex, and its size in bytes."""

    sha256: str
    size: int

    @property
    def path(self) -> str:
        return f"blobs/sha256/{self.sha256}"

    def __str__(self) -> str:
        return f"the blob {self.sha256}"


class _Layer(NamedTuple):
    """A layer: its blob, the name of its file (None: it has none), and what that is if the blob is it in compressed form."""

    blob: _Blob
    name: str | None
    content: _Blob | None = None


def unpack_image(folder: Path, members: Members) -> None:
    """Give every layer that has a title to `members`, under that title; every blob that the image names is checked.

    Raises UnsoundArchive where one is missing or has changed, NothingToVerify where it is not an image of files, or there are several,
    CannotUnpack, and OSError where something cannot be read.
    """
    title = members.title
    manifest = _manifest(folder, title)
    with _Reading(title, "its manifest"):
        config = _blob(manifest["config"])
        layers = [_layer(layer) for layer in manifest["layers"]]
    if not any(layer.name is not None for layer in layers):
        raise nothing(title, "is an image without named files, such as one of a container")
    checked: set[_Blob] = set()
    for blob, name, content in sorted(layers, key=lambda layer: layer.name is None or layer.name.rpartition("/")[2] != MANIFEST):
        if name is not None:
            original = _file(folder, blob.path, title)
            pieces = _pieces(original, blob, title, checked)
            if content is None:
                members.write(name, blob.size, pieces, original)
            else:
                members.write(name, content.size, _decompressed(pieces, content, f"the layer {quoted(name)}", title))
    for blob in {config, *(layer.blob for layer in layers)}:
        # What was linked has not been read, and of what many names have once is enough.
        for _ in () if blob in checked else _pieces(_file(folder, blob.path, title), blob, title, checked):
            pass
    members.part_subgraph_data()


def _manifest(folder: Path, title: str) -> Mapping[str, Any]:
    with _Reading(title, f"its {LAYOUT}"):
        if json.loads(_small(folder, LAYOUT, title))["imageLayoutVersion"] != "1.0.0":
            raise ValueError("it is of another version")
    with _Reading(title, f"its {INDEX}"):
        images = list(json.loads(_small(folder, INDEX, title))["manifests"])
    if len(images) != 1:
        hint = "copy the one that is meant into a layout of its own, and name that"
        raise nothing(title, f"is an image layout of {len(images)} images: {hint}")
    with _Reading(title, f"its {INDEX}"):
        if images[0]["mediaType"] != MANIFEST_TYPE:
            raise nothing(title, "is an image layout of something else than one image of files")
        blob = _blob(images[0])
    if blob.size > _MOST_BYTES:
        raise damaged(title, f"{blob} is larger than any manifest")
    data = b"".join(_pieces(_file(folder, blob.path, title), blob, title, set()))
    with _Reading(title, "its manifest"):
        document = json.loads(data)
    return document if isinstance(document, dict) else {}


class _Reading:
    """Makes one sentence of whatever a document of another form raises."""

    def __init__(self, title: str, what: str) -> None:
        self._title = title
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _WRONG):
            raise damaged(self._title, f"{self._what} is not as the OCI image specification has it") from error


def _blob(descriptor: Mapping[str, Any]) -> _Blob:
    digest, size = descriptor["digest"], descriptor["size"]
    if not _DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise ValueError(digest)
    return _Blob(digest.removeprefix("sha256:"), size)


def _layer(descriptor: Mapping[str, Any]) -> _Layer:
    """Raises what a descriptor of another form does."""
    annotations = descriptor.get("annotations") or {}
    name, blob = annotations.get(TITLE), _blob(descriptor)
    if not isinstance(name, str | None):
        raise TypeError("a title is no text")
    if name is None or CONTENT_DIGEST not in annotations or not descriptor["mediaType"].endswith(ZSTD_TYPE):
        return _Layer(blob, name)
    content = _blob({"digest": annotations[CONTENT_DIGEST], "size": int(annotations[CONTENT_SIZE])})
    return _Layer(blob, name.removesuffix(_SUFFIX), content)


def _decompressed(pieces: Iterator[bytes], content: _Blob, what: str, title: str) -> Iterator[bytes]:
    """What compressed pieces come to, which is that content. Raises UnsoundArchive, EnvironmentFailure without the package for zstd."""
    package = zstandard_package()
    digest, size = hashlib.sha256(), 0
    reader = package.ZstdDecompressor().stream_reader(_Source(pieces), read_size=_PIECE_BYTES)
    try:
        while piece := reader.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            yield piece
    except package.ZstdError as error:
        raise damaged(title, f"{what} cannot be decompressed: {str(error).rpartition(': ')[2]}") from error
    for _ in pieces:  # what follows counts too: the blob is checked at its end
        pass
    if (digest.hexdigest(), size) != content:
        raise damaged(title, f"{what} is not, decompressed, what the image says: it has another size or SHA-256")


class _Source:
    """Pieces as a file that is read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, and none at the end."""
        self._rest = self._rest or next(self._pieces, b"")
        cut = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:cut], self._rest[cut:]
        return piece


def _file(folder: Path, path: str, title: str) -> Path:
    """A file below the folder, which is there, and to which no link leads. Raises UnsoundArchive."""
    place = folder / path
    if real_path(place) != real_path(folder) / path:
        raise damaged(title, f"its {path} is a link, which is not followed")
    if not place.is_file():
        raise damaged(title, f"its {path} is missing")
    return place


def _small(folder: Path, path: str, title: str) -> bytes:
    with _file(folder, path, title).open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise damaged(title, f"its {path} is larger than any")
    return data


def _pieces(file: Path, blob: _Blob, title: str, checked: set[_Blob]) -> Iterator[bytes]:
    """The bytes of a blob, which is then one of those `checked`. Raises UnsoundArchive unless they are those that its digest names."""
    found = file.stat().st_size
    if found != blob.size:
        raise damaged(title, f"{blob} has {found:,} bytes; the image says {blob.size:,}")
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != blob.sha256:
        raise damaged(title, f"{blob} was changed: it has another SHA-256 than its name")
    checked.add(blob)

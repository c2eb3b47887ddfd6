"""Writer and reader of OCI images with one layer for each file.

Layers are named as ORAS names them. An image records no time and no host, so equal files produce equal images. Images from epbuild and ORAS
can be read, but container images cannot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from epbuild.archive import oci_layout, zstd
from epbuild.archive.artifact import Artifact, FileEntry
from epbuild.archive.members import Members, make_corrupt_error, make_nothing_to_verify_error, quote_member
from epbuild.archive.oci_layout import build_descriptor, find_read_problem, get_blob_path, parse_blob, read_document
from epbuild.archive.zstd import Compressed
from epbuild.core.canonical import encode_canonical
from epbuild.core.defaults import MANIFEST
from epbuild.core.digest import Blob, Hasher, hash_bytes
from epbuild.core.safepath import open_regular
from epbuild.recipe.image_reference import DEFAULT_TAG

_EMPTY = b"{}"
_PIECE_BYTES = 1 << 18


class Document(Struct, frozen=True):
    """Generated JSON file of an image: its POSIX path in the image layout, and its bytes."""

    path: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hash_bytes(self.data)

    @property
    def size(self) -> int:
        return len(self.data)


class Image(Struct, frozen=True):
    """In-memory description of an image layout. `blobs` has each distinct file once, with its path in the layout."""

    blobs: tuple[Artifact, ...]
    config: Document
    manifest: Document
    index: Document
    layout: Document

    @property
    def digest(self) -> str:
        """Name of the image in a registry: `sha256:` and the manifest's SHA-256."""
        return f"sha256:{self.manifest.sha256}"

    @property
    def documents(self) -> tuple[Document, ...]:
        """Files of the layout that are not layers, sorted by path. None of them has the path of a blob in `blobs`."""
        return tuple(sorted((self.config, self.manifest, self.index, self.layout), key=lambda document: document.path))


class Layer(NamedTuple):
    """Layer of an image: the entry of its blob. The path in the entry is the layer's title.

    `content` is the digest and size of the decompressed file, or None if the blob is not compressed.
    """

    entry: FileEntry
    content: Blob | None = None


def build_image(
    artifacts: Sequence[Artifact | Compressed],
    annotations: Mapping[str, str],
    *,
    tag: str = DEFAULT_TAG,
) -> Image:
    """Return the image of an output's files, which may be in any order. `annotations` are added to the manifest.

    The title of a layer is the path of its file. Raises ValueError if there are no files, as an image has at least one layer.
    """
    if not artifacts:
        raise ValueError("an image needs at least one file")
    packed, layers = [], []
    for item in artifacts:
        if isinstance(item, Compressed):
            packed.append(item.packed)
            layers.append(Layer(item.packed.entry, Blob(item.artifact.sha256, item.artifact.size)))
        else:
            packed.append(item)
            layers.append(Layer(item.entry))
    config, manifest, index, layout = describe_image(layers, annotations, tag=tag)
    packed.sort(key=lambda artifact: artifact.path, reverse=True)  # of several equal files, the first by path is kept
    blobs = {artifact.sha256: replace(artifact, path=get_blob_path(artifact.sha256)) for artifact in packed}
    blobs.pop(config.sha256, None)  # a user's file may have the same content as the configuration
    return Image(tuple(sorted(blobs.values(), key=lambda artifact: artifact.path)), config, manifest, index, layout)


def describe_image(
    layers: Sequence[Layer],
    annotations: Mapping[str, str],
    *,
    tag: str,
) -> tuple[Document, Document, Document, Document]:
    """Return the documents of an image: its configuration, its manifest, the index and the layout file.

    `tag` names the image in its layout, since some tools require a name there.
    """
    config = Document(get_blob_path(hash_bytes(_EMPTY)), _EMPTY)
    manifest = _build_json_document(
        {
            "schemaVersion": 2,
            "mediaType": oci_layout.MANIFEST_TYPE,
            "artifactType": oci_layout.ARTIFACT_TYPE,
            "config": build_descriptor(oci_layout.EMPTY_TYPE, config.sha256, config.size),
            "layers": [_describe_layer(layer) for layer in sorted(layers, key=lambda layer: layer.entry.path)],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )
    manifest_descriptor = {
        **build_descriptor(oci_layout.MANIFEST_TYPE, manifest.sha256, manifest.size),
        "artifactType": oci_layout.ARTIFACT_TYPE,
        "annotations": {oci_layout.REF_NAME: tag},
    }
    index = {
        "schemaVersion": 2,
        "mediaType": oci_layout.INDEX_TYPE,
        "manifests": [manifest_descriptor],
        "annotations": {oci_layout.FORMAT_ANNOTATION: oci_layout.FORMAT},
    }
    layout = _build_json_document({"imageLayoutVersion": oci_layout.VERSION}, oci_layout.LAYOUT)
    return config, manifest, _build_json_document(index, oci_layout.INDEX), layout


class _ReadLayer(NamedTuple):
    """Layer of a received image. `name` is the path of its file, or None if the layer has no title.

    `artifact` is the digest and size of the decompressed file, or None if the blob is not compressed.
    """

    blob: Blob
    name: str | None
    artifact: Blob | None = None


def unpack(folder: Path, members: Members) -> None:
    """Write every layer with a title to `members`, and verify every blob of the image.

    Raises UnsoundArchive if a blob is missing or has changed, and NothingToVerify unless the layout has exactly one image that consists of
    files. Also raises CannotUnpack, and OSError if a file cannot be read.
    """
    title = members.title
    manifest = _read_manifest(folder, title)
    with _translate_parse_errors(title, "the image's manifest"):
        config = parse_blob(manifest["config"])
        layers = [_read_layer(layer) for layer in manifest["layers"]]
    if not any(layer.name is not None for layer in layers):
        raise make_nothing_to_verify_error(title, "is an image without named files, such as a container image")
    checked: set[Blob] = set()
    # The manifest comes first, as it lists the sizes that other members may have.
    layers.sort(key=lambda layer: layer.name is None or layer.name.rpartition("/")[2] != MANIFEST)
    for blob, name, artifact in layers:
        if name is None:
            continue
        original = _find_file(folder, get_blob_path(blob.digest), title)
        pieces = _read_blob(original, blob, title, checked)
        if artifact is None:
            members.write(name, blob.size, pieces, original)
        else:
            members.write(name, artifact.size, _decompress(pieces, artifact, f"the layer {quote_member(name)}", title))
    # Unnamed blobs, and blobs that were hard-linked, have not been read yet.
    for blob in {config, *(layer.blob for layer in layers)} - checked:
        for _ in _read_blob(_find_file(folder, get_blob_path(blob.digest), title), blob, title, checked):
            pass  # reading a blob verifies it
    members.copy_subgraph_data()


def _read_manifest(folder: Path, title: str) -> Mapping[str, Any]:
    with _translate_parse_errors(title, f"the file {oci_layout.LAYOUT}"):
        if _read_json(folder, oci_layout.LAYOUT, title)["imageLayoutVersion"] != oci_layout.VERSION:
            raise ValueError("unsupported version")
    with _translate_parse_errors(title, f"the file {oci_layout.INDEX}"):
        images = list(_read_json(folder, oci_layout.INDEX, title)["manifests"])
    if len(images) != 1:
        hint = "copy one image into a separate layout, and pass that layout"
        raise make_nothing_to_verify_error(title, f"is an image layout with {len(images)} images: {hint}")
    with _translate_parse_errors(title, f"the file {oci_layout.INDEX}"):
        if images[0]["mediaType"] != oci_layout.MANIFEST_TYPE:
            raise make_nothing_to_verify_error(
                title, "is an image layout whose only entry is not an image manifest, such as a multi-platform index"
            )
        blob = parse_blob(images[0])
    if blob.size > oci_layout.MAX_BYTES:
        raise make_corrupt_error(title, f"the blob {blob.digest} is too large for a manifest")
    data = b"".join(_read_blob(_find_file(folder, get_blob_path(blob.digest), title), blob, title, set()))
    with _translate_parse_errors(title, "the image's manifest"):
        document = json.loads(data)
    return document if isinstance(document, dict) else {}


@contextmanager
def _translate_parse_errors(title: str, what: str) -> Iterator[None]:
    """Translate errors from parsing an invalid document into UnsoundArchive."""
    try:
        yield
    except oci_layout.MALFORMED as error:
        raise make_corrupt_error(title, f"{what} does not follow the OCI image specification") from error


def _read_layer(descriptor: Mapping[str, Any]) -> _ReadLayer:
    """Parse the descriptor of a layer. Raises one of MALFORMED if it is invalid."""
    annotations = descriptor.get("annotations") or {}
    name, blob = annotations.get(oci_layout.TITLE), parse_blob(descriptor)
    if not isinstance(name, str | None):
        raise TypeError("a title is not a string")
    if name is None or oci_layout.CONTENT_DIGEST not in annotations or not descriptor["mediaType"].endswith(oci_layout.ZSTD_TYPE):
        return _ReadLayer(blob, name)
    artifact = parse_blob({"digest": annotations[oci_layout.CONTENT_DIGEST], "size": int(annotations[oci_layout.CONTENT_SIZE])})
    return _ReadLayer(blob, name.removesuffix(zstd.SUFFIX), artifact)


def _decompress(pieces: Iterator[bytes], artifact: Blob, what: str, title: str) -> Iterator[bytes]:
    """Decompress a blob and verify its content. Raises UnsoundArchive, and EnvironmentFailure if the zstd package is missing."""
    package = zstd.import_zstandard()
    hasher = Hasher()
    reader = package.ZstdDecompressor().stream_reader(_PieceReader(pieces), read_size=_PIECE_BYTES)
    try:
        while piece := reader.read(_PIECE_BYTES):
            hasher.update(piece)
            yield piece
    except package.ZstdError as error:
        raise make_corrupt_error(title, f"{what} cannot be decompressed: {zstd.extract_reason(error)}") from error
    for _ in pieces:
        pass  # read the bytes after the frame, too: a blob is verified once its end is reached
    if hasher.blob != artifact:
        raise make_corrupt_error(title, f"{what} does not have the content that the image declares: its size or SHA-256 differs")


class _PieceReader:
    """File-like reader of an iterator of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, or no bytes at the end."""
        self._rest = self._rest or next(self._pieces, b"")
        cut = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:cut], self._rest[cut:]
        return piece


def _find_file(folder: Path, path: str, title: str) -> Path:
    """Return the path of a file below the folder. Raises UnsoundArchive if the file is missing or a link."""
    reason = find_read_problem(folder, path)
    if reason is not None:
        raise make_corrupt_error(title, f"the file {path} {reason}")
    return folder / path


def _read_json(folder: Path, path: str, title: str) -> Any:
    """Read and parse `oci-layout` or `index.json`. Raises UnsoundArchive, and one of MALFORMED for invalid JSON."""
    try:
        data = read_document(folder, path)
    except ValueError as error:
        raise make_corrupt_error(title, f"the file {path} {error}") from error
    return json.loads(data)


def _read_blob(file: Path, blob: Blob, title: str, checked: set[Blob]) -> Iterator[bytes]:
    """Yield the bytes of a blob, and add the verified blob to `checked`. Raises UnsoundArchive if its size or digest is wrong."""
    size = file.stat().st_size
    if size != blob.size:
        raise make_corrupt_error(title, f"the blob {blob.digest} has {size:,} bytes; the image declares {blob.size:,}")
    hasher = Hasher()
    with open_regular(file) as opened:
        while piece := opened.read(_PIECE_BYTES):
            hasher.update(piece)
            yield piece
    if hasher.digest != blob.digest:
        raise make_corrupt_error(title, f"the blob {blob.digest} was changed: its SHA-256 differs from its name")
    checked.add(blob)


def _describe_layer(layer: Layer) -> dict[str, Any]:
    entry, content = layer
    media_type, annotations = oci_layout.MEDIA_TYPES[entry.role], {oci_layout.TITLE: entry.path}
    if content is not None:
        media_type += oci_layout.ZSTD_TYPE
        annotations |= {oci_layout.CONTENT_DIGEST: f"sha256:{content.digest}", oci_layout.CONTENT_SIZE: str(content.size)}
    return {**build_descriptor(media_type, entry.digest, entry.size), "annotations": annotations}


def _build_json_document(document: Mapping[str, Any], path: str | None = None) -> Document:
    data = encode_canonical(document).encode()
    return Document(path or get_blob_path(hash_bytes(data)), data)

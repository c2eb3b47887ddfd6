"""An output as an OCI image: one blob for each file, named as ORAS names it, and the documents that make a folder an image layout.

By the OCI image specification 1.1 ("Image Layout", "Image Manifest", "Guidelines for Artifact Usage"). Nothing of a time or of a host is in
it: equal files are equal images.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epbuild.archive.compression import Squeezed
from epbuild.archive.content import Content, Role
from epbuild.core.canonical import canonical_json
from epbuild.core.safepath import real_path
from epbuild.recipe.image_reference import DEFAULT_TAG

ARTIFACT_TYPE = "application/vnd.epbuild.output.v1"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"

MEDIA_TYPES: Mapping[Role, str] = MappingProxyType(
    {
        "model": "application/vnd.epbuild.model.v1.onnx",
        "context-binary": "application/vnd.epbuild.context-binary.v1",
        "external-data": "application/vnd.epbuild.external-data.v1",
        "base-model": "application/vnd.epbuild.base-model.v1.onnx",
        "base-data": "application/vnd.epbuild.base-data.v1",
        "genai-config": "application/vnd.epbuild.genai-config.v1+json",
        "asset": "application/octet-stream",
        "manifest": "application/vnd.epbuild.manifest.v1+json",
        "provenance": "application/vnd.in-toto+json",
        "bom": "application/vnd.cyclonedx+json",
    }
)
"""The media type of a file, by its role. There is no registered one for ONNX; those of the last two are their formats' own."""

TITLE = "org.opencontainers.image.title"
REF_NAME = "org.opencontainers.image.ref.name"
ZSTD_TYPE = "+zstd"
"""What the media type of a compressed layer ends in."""

CONTENT_DIGEST, CONTENT_SIZE = "dev.epbuild.content.digest", "dev.epbuild.content.size"
"""On a compressed layer: `sha256:` and the SHA-256 of what it is decompressed, and how many bytes that has."""

FORMAT_ANNOTATION = "dev.epbuild.format"
"""On the `index.json` of an image layout that epbuild made; its value is FORMAT."""

FORMAT = "1"

_LAYOUT_FILE = "oci-layout"
_INDEX_FILE = "index.json"
_EMPTY = b"{}"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

# Registries take manifests of 4 MiB and less. A layout has room for more, but not for what would fill the memory.
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Document:
    """A small file that is made along with an image: its POSIX path in the image layout, and its bytes."""

    path: str
    data: bytes

    @property
    def sha256(self) -> str:
        """In hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Image:
    """An image layout, as a tree. `blobs` holds each content once, under its path there."""

    blobs: tuple[Content, ...]
    config: Document
    manifest: Document
    index: Document
    layout: Document

    @property
    def digest(self) -> str:
        """What names the image in a registry: `sha256:` and the manifest's SHA-256."""
        return f"sha256:{self.manifest.sha256}"

    @property
    def documents(self) -> tuple[Document, ...]:
        """The files of the layout that are no content, in the order of their paths; none has the path of one of `blobs`."""
        return tuple(sorted((self.config, self.manifest, self.index, self.layout), key=lambda document: document.path))


def image(
    contents: Sequence[Content | Squeezed],
    annotations: Mapping[str, str],
    *,
    artifact_type: str = ARTIFACT_TYPE,
    tag: str = DEFAULT_TAG,
) -> Image:
    """The image of an output's files, in whatever order they come; `annotations` are the manifest's.

    Each file is a layer whose title is its path, or that of the compressed file that stands for it. `tag` names the image in its layout,
    for tools that want a name there. Raises ValueError where there is no file: an image has one layer at least.
    """
    if not contents:
        raise ValueError("an image needs a file")
    config = Document(_blob(hashlib.sha256(_EMPTY).hexdigest()), _EMPTY)
    files = sorted(contents, key=lambda content: _packed(content).path)
    manifest = _document(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": artifact_type,
            "config": _descriptor(EMPTY_TYPE, config.sha256, config.size),
            "layers": [_layer(content) for content in files],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )
    named = {
        **_descriptor(MANIFEST_TYPE, manifest.sha256, manifest.size),
        "artifactType": artifact_type,
        "annotations": {REF_NAME: tag},
    }
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named], "annotations": {FORMAT_ANNOTATION: FORMAT}}
    packed = [_packed(content) for content in reversed(files)]
    blobs = {content.sha256: replace(content, path=_blob(content.sha256)) for content in packed}
    blobs.pop(config.sha256, None)  # a file of the user's may hold just that
    return Image(
        blobs=tuple(sorted(blobs.values(), key=lambda content: content.path)),
        config=config,
        manifest=manifest,
        index=_document(index, _INDEX_FILE),
        layout=_document({"imageLayoutVersion": "1.0.0"}, _LAYOUT_FILE),
    )


def listed(folder: Path) -> Mapping[str, str]:
    """The files that an image layout of epbuild's consists of: each file's SHA-256 by its POSIX path; none if it is not one.

    It is one if its index says so and names one manifest, which is there and has not been changed. Whether the other files are there is
    not looked at, and nothing outside the folder is.
    """
    try:
        index = _read(folder, _INDEX_FILE)
        layout = _read(folder, _LAYOUT_FILE)
        document = json.loads(index)
        (named,) = document["manifests"]
        if document["annotations"][FORMAT_ANNOTATION] != FORMAT:
            return {}
        manifest = _hex(named["digest"])
        data = _read(folder, _blob(manifest))
        if hashlib.sha256(data).hexdigest() != manifest:
            return {}
        described = json.loads(data)
        digests = [_hex(part["digest"]) for part in (described["config"], *described["layers"])]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        _INDEX_FILE: hashlib.sha256(index).hexdigest(),
        _LAYOUT_FILE: hashlib.sha256(layout).hexdigest(),
        **{_blob(digest): digest for digest in (manifest, *digests)},
    }


def _packed(content: Content | Squeezed) -> Content:
    return content.packed if isinstance(content, Squeezed) else content


def _layer(layer: Content | Squeezed) -> dict[str, Any]:
    packed, media_type = _packed(layer), MEDIA_TYPES[_packed(layer).role]
    annotations = {TITLE: packed.path}
    if isinstance(layer, Squeezed):
        media_type += ZSTD_TYPE
        annotations |= {CONTENT_DIGEST: f"sha256:{layer.content.sha256}", CONTENT_SIZE: str(layer.content.size)}
    return {**_descriptor(media_type, packed.sha256, packed.size), "annotations": annotations}


def _descriptor(media_type: str, sha256: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size}


def _document(document: Mapping[str, Any], path: str | None = None) -> Document:
    data = canonical_json(document).encode()
    return Document(path or _blob(hashlib.sha256(data).hexdigest()), data)


def _blob(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def _hex(digest: str) -> str:
    """The hex of a digest. Raises ValueError for anything that could lead elsewhere."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(digest)
    return digest.removeprefix("sha256:")


def _read(folder: Path, path: str) -> bytes:
    """A file below `folder`. Raises OSError, and ValueError where it is too large, no file, or reached through a link."""
    place = folder / path
    if real_path(place) != real_path(folder) / path or not place.is_file():
        raise ValueError(path)
    with place.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(path)
    return data

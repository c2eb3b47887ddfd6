"""Files of an OCI image layout: their names, media types and blobs.

See the OCI image specification 1.1 ("Image Layout", "Image Manifest", "Guidelines for Artifact Usage").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epbuild.archive.artifact import Role
from epbuild.core.digest import Blob, hash_bytes
from epbuild.core.safepath import open_regular, resolve_links

LAYOUT, INDEX = "oci-layout", "index.json"
"""Names of the files that mark a folder as an image layout."""

VERSION = "1.0.0"
"""Version of the image layout."""

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
        "adapter": "application/vnd.epbuild.adapter.v1.onnx-adapter",
        "asset": "application/octet-stream",
        "manifest": "application/vnd.epbuild.manifest.v1+json",
        "provenance": "application/vnd.in-toto+json",
        "bom": "application/vnd.cyclonedx+json",
    }
)
"""Media types of files, by role. There is no registered type for ONNX. in-toto and CycloneDX define the last two types."""

TITLE = "org.opencontainers.image.title"
REF_NAME = "org.opencontainers.image.ref.name"
ZSTD_TYPE = "+zstd"
"""Suffix of the media type of a compressed layer."""

CONTENT_DIGEST, CONTENT_SIZE = "dev.epbuild.content.digest", "dev.epbuild.content.size"
"""Annotations of a compressed layer: the digest and the size of the decompressed file."""

FORMAT_ANNOTATION = "dev.epbuild.format"
"""Annotation of `index.json` in epbuild's image layouts. Its value is FORMAT."""

FORMAT = "1"

MAX_BYTES = 16 << 20
"""Maximum size of an index or a manifest, to bound memory use. Registries accept at most 4 MiB."""

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that parsing an invalid document may raise."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def get_blob_path(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def parse_blob(descriptor: Mapping[str, Any]) -> Blob:
    """Return the blob that a descriptor names. Raises one of MALFORMED for an invalid digest, which could form an unsafe path."""
    digest, size = descriptor["digest"], descriptor["size"]
    if not _DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise ValueError(digest)
    return Blob(digest.removeprefix("sha256:"), size)


def build_descriptor(media_type: str, sha256: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size}


def find_read_problem(folder: Path, path: str) -> str | None:
    """Return why a file below an image layout cannot be read, such as `is missing`. Return None if the file can be read."""
    place = folder / path
    if resolve_links(place) != resolve_links(folder) / path:
        return "is a link, which is not followed"
    return None if place.is_file() else "is missing"


def read_document(folder: Path, path: str) -> bytes:
    """Read a document below an image layout. Raises OSError, and ValueError (with the reason) if the document must not be read."""
    why = find_read_problem(folder, path)
    if why is not None:
        raise ValueError(why)
    with open_regular(folder / path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError("is too large")
    return data


def read_listed(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of each file of an image layout, by POSIX path. The result is empty unless epbuild wrote the layout.

    A layout counts as epbuild's if its index has the annotation FORMAT_ANNOTATION, and names a single manifest that exists and is
    unchanged. Other files are not read.
    """
    try:
        index = read_document(folder, INDEX)
        layout = read_document(folder, LAYOUT)
        document = json.loads(index)
        (named,) = document["manifests"]
        if document["annotations"][FORMAT_ANNOTATION] != FORMAT:
            return {}
        manifest = parse_blob(named)
        data = read_document(folder, get_blob_path(manifest.digest))
        if hash_bytes(data) != manifest.digest:
            return {}
        described = json.loads(data)
        blobs = [parse_blob(part) for part in (described["config"], *described["layers"])]
    except (OSError, *MALFORMED):
        return {}
    return {
        INDEX: hash_bytes(index),
        LAYOUT: hash_bytes(layout),
        **{get_blob_path(blob.digest): blob.digest for blob in (manifest, *blobs)},
    }

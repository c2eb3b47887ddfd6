"""Owned files of an output, as its manifest or the index of an image lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from epbuild.archive.artifact import own_manifest
from epbuild.core.defaults import MANIFEST, STATEMENT
from epbuild.core.safepath import is_anchored, leaves, read_regular
from epbuild.output.manifest import FORMAT


class Listed(NamedTuple):
    """What an output lists of one of its files; None where it does not list that. The size is in bytes."""

    sha256: str | None = None
    size: int | None = None
    by_name: bool = False
    """Whether the file is epbuild's whatever it holds. All other files have to match their SHA-256, since a stranger can write a list."""


def listed_files(output: Path) -> dict[str, Listed]:
    """The files that an output lists as made by epbuild; none when it lists none.

    The paths of a folder's are POSIX paths below it, its manifest's among them; an archive has one, its own name.
    """
    if not output.exists():
        return {}
    if output.is_file():
        from epbuild.archive import formats  # most outputs are folders with a manifest

        return {output.name: Listed(by_name=True)} if formats.listed(output) is not None else {}
    try:
        document = json.loads(read_regular(output / MANIFEST))
    except (OSError, ValueError, RecursionError):
        from epbuild.archive import oci_layout

        return {path: Listed(digest) for path, digest in oci_layout.listed(output).items()}
    try:
        return _listed(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _listed(document: Mapping[str, Any]) -> dict[str, Listed]:
    """What the manifest of a folder lists, or that of a model package, where it is below what ONNX Runtime reads."""
    own = own_manifest(document)
    if own["format"] != FORMAT:
        return {}
    files = {path: _facts_of(file) for file in own["files"] if not _leaves(path := str(file["path"]))}
    provenance = str(own.get("provenance", ""))
    unlisted = [MANIFEST, *([provenance] if provenance.endswith(STATEMENT) and not _leaves(provenance) else [])]
    return {**files, **dict.fromkeys(unlisted, Listed(by_name=True))}


def _leaves(path: str) -> bool:
    return is_anchored(path) or leaves(path)


def _facts_of(file: Mapping[str, Any]) -> Listed:
    sha256, size = file.get("sha256"), file.get("size")
    return Listed(sha256 if isinstance(sha256, str) else None, size if isinstance(size, int) else None)

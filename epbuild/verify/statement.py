"""Provenance of an artifact against its manifest and files, and of an archive.

Nothing is signed here: a file that is changed with its statement is found by a check of signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from epbuild.cache.digests import Counting, uncounted
from epbuild.core.defaults import MANIFEST, STATEMENT
from epbuild.core.safepath import BadReference, MissingReference, locate, open_regular
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.findings import EMIT_AGAIN, Finding, sentence
from epbuild.verify.payload import Payload

_BOTH_AGAIN = "Get both again, from one build."
_MOST_BYTES = 64 << 20
_TYPE = "https://in-toto.io/Statement/"


def provenance_findings(artifact: ArtifactFolder) -> Iterator[Finding]:
    """Whether the statement that the manifest names is there, and is about the manifest and every file that is listed."""
    manifest = artifact.manifest
    if manifest is None or manifest.provenance is None:
        return
    name = artifact.shown(manifest.provenance)
    try:
        subjects = _read_subjects(locate(artifact.folder, manifest.provenance))
        own = Payload.whole(locate(artifact.folder, MANIFEST)).sha256()
    except MissingReference:
        yield Finding("provenance", name, "failed", "The manifest names it, and it is not there.", "EPB615", EMIT_AGAIN)
        return
    except BadReference as error:
        yield Finding("provenance", name, "failed", sentence(str(error)), "EPB615", EMIT_AGAIN)
        return
    except OSError as error:
        yield Finding("provenance", name, "failed", f"It cannot be read: {error.strerror or error}.", "EPB600")
        return
    if subjects is None:
        yield Finding("provenance", name, "failed", "It is no statement of in-toto about files.", "EPB613", EMIT_AGAIN)
        return
    digests = {MANIFEST: own, **{path: listed.sha256 for path, listed in manifest.files.items()}}
    wrong = [path for path, digest in digests.items() if subjects.get(path) != digest]
    for path in wrong:
        message = "The provenance is about another file of this name." if path in subjects else "The provenance is not about it."
        yield Finding("provenance", artifact.shown(path), "failed", message, "EPB613", EMIT_AGAIN)
    if not wrong:
        yield Finding("provenance", name, "passed")


def check_statement(archive: Path, counting: Counting = uncounted) -> Finding | None:
    """Whether NAME.intoto.json beside the archive NAME is a statement about it; None where there is none.

    The bytes of the archive are counted while it is hashed. Raises OSError where the archive cannot be read.
    """
    place = archive.with_name(f"{archive.name}{STATEMENT}")
    if not place.is_file():
        return None
    try:
        subjects = _read_subjects(place)
    except OSError:
        subjects = None
    if subjects is None:
        return Finding("provenance", place.name, "failed", "It is no in-toto statement that can be read.", "EPB637", _BOTH_AGAIN)
    size = archive.stat().st_size
    with counting(size) as count:
        digest = Payload(archive, 0, size).sha256(count)
    if digest not in subjects.values():
        message = f"It is not about this archive, which has the SHA-256 {digest[:12]}…."
        return Finding("provenance", place.name, "failed", message, "EPB637", _BOTH_AGAIN)
    return Finding("provenance", place.name, "passed")


def _read_subjects(path: Path) -> Mapping[str, str] | None:
    """The SHA-256 of each file that the in-toto statement at `path` is about; None where that is none. Raises OSError."""
    with open_regular(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        return None
    try:
        document = json.loads(content)
        if not str(document["_type"]).startswith(_TYPE):
            return None
        return {str(item["name"]): str(item["digest"]["sha256"]).lower() for item in document["subject"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        return None

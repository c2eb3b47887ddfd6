"""The provenance beside an archive: whether it is about this archive, by its SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from epbuild.verify import Finding

_BESIDE = ".intoto.json"
_TYPE = "https://in-toto.io/Statement/"
_MOST_BYTES = 64 << 20
_AGAIN = "Get both again, from one build."


def check_statement(archive: Path) -> Finding | None:
    """Whether NAME.intoto.json beside the archive NAME is a statement about it; None where there is none.

    Raises OSError where the archive cannot be read.
    """
    place = archive.with_name(f"{archive.name}{_BESIDE}")
    if not place.is_file():
        return None
    try:
        with place.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        document = json.loads(data)
        known = str(document["_type"]).startswith(_TYPE)
        named = {str(subject["digest"].get("sha256")).lower() for subject in document["subject"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        known, named = False, set()
    if not known:
        return Finding("provenance", place.name, "failed", "It is no in-toto statement that can be read.", "EPB637", _AGAIN)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest not in named:
        message = f"It is not about this archive, which has the SHA-256 {digest[:12]}…."
        return Finding("provenance", place.name, "failed", message, "EPB637", _AGAIN)
    return Finding("provenance", place.name, "passed")

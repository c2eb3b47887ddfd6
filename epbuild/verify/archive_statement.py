"""Provenance of an archive, in a file beside it: whether it is about this one."""

from __future__ import annotations

from pathlib import Path

from epbuild.core.digest import file_digest
from epbuild.verify.findings import Finding
from epbuild.verify.statement import read_subjects

_BESIDE = ".intoto.json"
_AGAIN = "Get both again, from one build."


def check_statement(archive: Path) -> Finding | None:
    """Whether NAME.intoto.json beside the archive NAME is a statement about it; None where there is none.

    Raises OSError where the archive cannot be read.
    """
    place = archive.with_name(f"{archive.name}{_BESIDE}")
    if not place.is_file():
        return None
    try:
        subjects = read_subjects(place)
    except OSError:
        subjects = None
    if subjects is None:
        return Finding("provenance", place.name, "failed", "It is no in-toto statement that can be read.", "EPB637", _AGAIN)
    digest = file_digest(archive)
    if digest not in subjects.values():
        message = f"It is not about this archive, which has the SHA-256 {digest[:12]}…."
        return Finding("provenance", place.name, "failed", message, "EPB637", _AGAIN)
    return Finding("provenance", place.name, "passed")

"""Sizes of an output before and after an emission, and savings of sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.core.defaults import MANIFEST, STATEMENT
from epbuild.engine.events import Event
from epbuild.output.existing import read_listed_files
from epbuild.plan.result import CompileResult
from epbuild.plan.steps import SessionGroup
from epbuild.verify.expectations import measure_shared_bytes

Files = Mapping[str, Mapping[str, Any]]
"""The `digest` and the `size` in bytes of each file of an output, by POSIX path below the output."""


class ChangedFile(Struct, frozen=True):
    """File of an output that changed."""

    path: str
    """Path below the output."""
    before: int | None
    """Bytes before; null if the file is new."""
    after: int | None
    """Bytes after; null if the file was removed."""


class OutputCompared(Event, frozen=True):
    """Comparison of an emitted output with its previous state."""

    step: str
    """Id of the emit step."""
    directory: str
    """Path of the output."""
    before: int | None
    """Bytes before, without the manifest; null if there was no output."""
    after: int
    """Bytes after, without the manifest."""
    files: tuple[ChangedFile, ...]
    """Files that changed."""


class SharingSaved(Event, frozen=True):
    """Size of a sharing group in bytes, and what sharing saves.

    If `measured` is true, `unshared` and `shared` are bytes of binaries and data, and `unshared` was measured by compiling each member
    alone. Otherwise, they are bytes of the sources' weights, of which `shared` counts equal contents once: the savings are unknown.
    """

    step: str
    """Id of the step."""
    unshared: int
    """Bytes without sharing."""
    shared: int
    """Bytes with sharing."""
    measured: bool
    """True if the bytes were measured by compiling each member alone, false if they were computed from the sources' weights."""
    made: int
    """Bytes of the group's binaries and data."""


def read_last_files(output: Path, recorded: Files) -> Files:
    """Return the files of the last emission: from the output's manifest, or else the files `recorded` in the workspace.

    Must be called before the new output is swapped in. The manifest has precedence, since another workspace may have emitted the output
    later.
    """
    listed = read_listed_files(output).items()
    files = {path: {"digest": file.sha256, "size": file.size} for path, file in listed if file.size is not None}
    return files or recorded


def compare_outputs(step: str, directory: str, before: Files, after: Files) -> OutputCompared:
    """Compare an output with its previous state. Manifests and provenance statements are ignored, as no manifest lists them."""
    old, new = ({path: file for path, file in files.items() if not is_metadata(path)} for files in (before, after))
    changes = []
    for path in sorted({*old, *new}):
        first, second = old.get(path), new.get(path)
        if first is None or second is None or first["digest"] != second["digest"]:
            changes.append(ChangedFile(path, first["size"] if first else None, second["size"] if second else None))
    return OutputCompared(
        step,
        directory,
        sum(file["size"] for file in old.values()) if old else None,
        sum(file["size"] for file in new.values()),
        tuple(changes),
    )


def is_metadata(path: str) -> bool:
    """Return whether a file is a manifest or a provenance statement."""
    return path.rpartition("/")[2] == MANIFEST or path.endswith(STATEMENT)


def compute_savings(group: SessionGroup, result: CompileResult) -> SharingSaved | None:
    """Return the savings of sharing in a session group. Return None if nothing is shared, or if the savings are unknown.

    The savings are measured if the recipe sets a minimum, as every member has then been compiled alone. Otherwise, only the bytes of
    equal weights in the sources are known. The EP may save more or fewer bytes, as it converts weights.
    """
    if not group.share:
        return None
    step = group.steps[-1]
    measured = measure_shared_bytes(group, result)
    if measured is not None:
        return SharingSaved(step, measured.alone, measured.shared, measured=True, made=result.context_bytes)
    users = Counter(name for model in result.models for name in {*model.binaries, *model.data})
    weights = result.source_weights
    if weights is None or not weights.total_bytes or max(users.values(), default=0) < 2:
        return None
    return SharingSaved(step, weights.total_bytes, weights.stored_bytes, measured=False, made=result.context_bytes)

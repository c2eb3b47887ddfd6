"""Sizes of an output before and after its emission, and savings of sharing."""

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
from epbuild.verify.expectations import shared_bytes

Files = Mapping[str, Mapping[str, Any]]
"""The `digest` and the `size` in bytes of each file of an output, by its POSIX path there."""


class ChangedFile(Struct, frozen=True):
    """Changed file of an output: its size before (None if it is new) and after (None if it is gone)."""

    path: str
    before: int | None
    after: int | None


class OutputCompared(Event, frozen=True):
    """An output was emitted: its bytes before (None if there was none) and after, without the manifest, and its changed files."""

    step: str
    directory: str
    before: int | None
    after: int
    files: tuple[ChangedFile, ...]


class SharingSaved(Event, frozen=True):
    """Bytes of a sharing group without sharing, and with it.

    If `measured`, these are the bytes of binaries and data, with each member compiled alone. Otherwise they are those of the sources'
    weights, in which equal contents count once.
    """

    step: str
    unshared: int
    shared: int
    measured: bool


def read_last_files(output: Path, recorded: Files) -> Files:
    """Return the files of the last emission: from the manifest if there is one, else as the workspace has them `recorded`.

    Call it before the output is swapped in. The manifest comes first, since another workspace may have emitted the output after this one.
    """
    listed = read_listed_files(output)
    return {
        path: {"digest": file.sha256, "size": file.size} for path, file in listed.items() if file.size is not None
    } or recorded


def compare_outputs(step: str, directory: str, before: Files, after: Files) -> OutputCompared:
    """Compare an output with its previous state, without the manifests and the statement, which no manifest can list."""
    old, new = ({path: file for path, file in files.items() if not is_about_others(path)} for files in (before, after))
    return OutputCompared(
        step,
        directory,
        sum(file["size"] for file in old.values()) if old else None,
        sum(file["size"] for file in new.values()),
        tuple(
            ChangedFile(path, old[path]["size"] if path in old else None, new[path]["size"] if path in new else None)
            for path in sorted({*old, *new})
            if path not in old or path not in new or old[path]["digest"] != new[path]["digest"]
        ),
    )


def is_about_others(path: str) -> bool:
    """Return whether a file is a manifest or a statement."""
    return path.rpartition("/")[2] == MANIFEST or path.endswith(STATEMENT)


def compute_savings(group: SessionGroup, result: CompileResult) -> SharingSaved | None:
    """Return the savings of sharing in a session group; None if nothing is shared, or if they are unknown.

    They are measured if the recipe sets a minimum: then every member has been compiled alone. Otherwise they follow from the bytes of the
    sources' weights: once for each model that has them, and once in all. The sizes of shared files show nothing, since a binary of models
    without common weights is as large as the separate binaries together.
    """
    if not group.share:
        return None
    step = group.steps[-1]
    measured = shared_bytes(group, result)
    if measured is not None:
        return SharingSaved(step, measured.alone, measured.shared, measured=True)
    users = Counter(name for model in result.models for name in {*model.binaries, *model.data})
    weights = result.source_weights
    if weights is None or not weights.total_bytes or max(users.values(), default=0) < 2:
        return None
    return SharingSaved(step, weights.total_bytes, weights.stored_bytes, measured=False)

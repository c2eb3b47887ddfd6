"""Differences between a report and an earlier report or emitted outputs.

Docstrings of fields are the descriptions in `schemas/report.schema.json`, as in `recipe_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epbuild.session.events import Coverage


class ComparedModel(Struct, frozen=True):
    """Model for a target, on one side of a comparison."""

    outcome: Coverage
    """Coverage of the model."""
    ep_context_nodes: int | None
    """Number of EPContext nodes."""
    fallback_nodes: int | None
    """Number of fallback nodes."""
    size: int | None
    """Bytes of all files that the model needs; null for outputs, because their files are compared instead."""
    seconds: float | None
    """Duration of the compile."""
    accuracy: Mapping[str, float] | None
    """Worst value of each metric among all outputs."""


class ModelChange(Struct, frozen=True):
    """Model that differs for a target, or exists on only one side of the comparison."""

    group: str
    """Name of the group."""
    member: str
    """Name of the model in its group."""
    target: str
    """Name of the target."""
    before: ComparedModel | None
    """Old state; null if the model is new."""
    after: ComparedModel | None
    """New state; null if the model was removed."""


class ComparedFile(Struct, frozen=True):
    """File on one side of a comparison."""

    size: int
    """Bytes."""
    sha256: str
    """SHA-256."""


class FileChange(Struct, frozen=True):
    """File of an output that differs, or exists on only one side of the comparison."""

    path: str
    """Path relative to the output."""
    before: ComparedFile | None
    """Old file; null if the file is new."""
    after: ComparedFile | None
    """New file; null if the file was removed."""


class OutputChange(Struct, frozen=True):
    """Output that differs, or exists on only one side of the comparison. The manifest and the provenance are ignored."""

    path: str
    """Path of the output."""
    groups: tuple[str, ...]
    """Groups of the output's models."""
    targets: tuple[str, ...]
    """Targets of the output's models."""
    before: int | None
    """Old bytes; null if the output is new."""
    after: int | None
    """New bytes; null if the output was removed."""
    files: tuple[FileChange, ...]
    """Files that differ."""


class VersionChange(Struct, frozen=True):
    """Package of a toolchain whose version changed."""

    toolchain: str
    """Name of the toolchain."""
    package: str
    """Name of the package."""
    before: str | None
    """Old version; null if the package is new."""
    after: str | None
    """New version; null if the package was removed."""


class SourceChange(Struct, frozen=True):
    """Source model whose files differ."""

    model: str
    """Name in the recipe."""
    before: str | None
    """Old SHA-256 of the graph; null if the model is new."""
    after: str | None
    """New SHA-256 of the graph; null if the model was removed."""
    data: bool
    """True if the external data differs."""


class ReportedAgainst(Struct, frozen=True):
    """Changes since an earlier report was written or outputs were emitted."""

    path: str
    """Path of the earlier report or the outputs."""
    kind: Literal["report", "outputs"]
    """Subject of the comparison: an earlier report, or emitted outputs."""
    recipe: str
    """Name of the recipe that the earlier report or the outputs belong to."""
    made_at: str | None
    """Time when the earlier report was written; null for outputs."""
    epbuild: str | None
    """Version of epbuild that wrote the earlier report; null for outputs."""
    build_seconds: float | None
    """Duration of the last build in the earlier report; null if unknown."""
    models: tuple[ModelChange, ...]
    """Models that differ."""
    outputs: tuple[OutputChange, ...]
    """Outputs that differ."""
    versions: tuple[VersionChange, ...]
    """Packages that differ."""
    sources: tuple[SourceChange, ...]
    """Source models that differ; empty for outputs."""

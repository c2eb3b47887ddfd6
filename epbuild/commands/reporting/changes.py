"""Differences of a report from another report, or from outputs.

Docstrings of fields are descriptions in `schemas/report.schema.json`, as in `recipe_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epbuild.session.events import Coverage


class ComparedModel(Struct, frozen=True):
    """A model for a target, on one side of a comparison."""

    outcome: Coverage
    """How far it was taken."""
    ep_context_nodes: int | None
    """How many EPContext nodes it became."""
    fallback_nodes: int | None
    """How many nodes stayed outside."""
    size: int | None
    """The bytes of all that it takes to run it; null for outputs, whose files are compared instead."""
    seconds: float | None
    """What the compile took."""
    accuracy: Mapping[str, float] | None
    """The worst figures of all its outputs."""


class ModelChange(Struct, frozen=True):
    """A model for a target that differs, or that only one side has."""

    group: str
    """Its group."""
    member: str
    """Its name in the group."""
    target: str
    """The target."""
    before: ComparedModel | None
    """What it was; null: it is new."""
    after: ComparedModel | None
    """What it is; null: it is gone."""


class ComparedFile(Struct, frozen=True):
    """A file on one side of a comparison."""

    size: int
    """Its size."""
    sha256: str
    """Its SHA-256."""


class FileChange(Struct, frozen=True):
    """A file of an output that differs, or that only one side has."""

    path: str
    """Its path, below the output."""
    before: ComparedFile | None
    """What it was; null: it is new."""
    after: ComparedFile | None
    """What it is; null: it is gone."""


class OutputChange(Struct, frozen=True):
    """An output that differs, or that only one side has; manifests and provenance are left out."""

    path: str
    """Its place."""
    groups: tuple[str, ...]
    """The groups whose models are in it."""
    targets: tuple[str, ...]
    """The targets that they are compiled for."""
    before: int | None
    """What its files took; null: it is new."""
    after: int | None
    """What they take; null: it is gone."""
    files: tuple[FileChange, ...]
    """The files that differ."""


class VersionChange(Struct, frozen=True):
    """A package of a toolchain in another version."""

    toolchain: str
    """The toolchain."""
    package: str
    """The package."""
    before: str | None
    """The version that it had; null: it was not there."""
    after: str | None
    """The version that it has; null: it is gone."""


class SourceChange(Struct, frozen=True):
    """A source model whose files differ."""

    model: str
    """Its name in the recipe."""
    before: str | None
    """The SHA-256 that its graph had; null: there was no such model."""
    after: str | None
    """The SHA-256 that it has; null: it is gone."""
    data: bool
    """Whether its external data differs."""


class ReportedAgainst(Struct, frozen=True):
    """What changed since another report was made, or outputs were published."""

    path: str
    """What was compared with."""
    kind: Literal["report", "outputs"]
    """What that is."""
    recipe: str
    """The recipe that it is of."""
    made_at: str | None
    """When the other report was made."""
    epbuild: str | None
    """The release that made it."""
    build_seconds: float | None
    """What its last build took."""
    models: tuple[ModelChange, ...]
    """The models that differ."""
    outputs: tuple[OutputChange, ...]
    """The outputs that differ."""
    versions: tuple[VersionChange, ...]
    """The packages that differ."""
    sources: tuple[SourceChange, ...]
    """The source models that differ, where the other side is a report."""

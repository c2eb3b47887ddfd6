"""The recipe as values: what `load` makes out of the text, and what the planner reads. Nothing here touches a file.

Every thing that a later message may have to point at carries `where`, its position in the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from epbuild.errors import Position

Scalar = str | int | float | bool
"""What a YAML scalar may be in a recipe; `null` is refused where a value is needed."""

GraphOptimization = Literal["disable_all", "basic", "extended", "layout", "all"]


@dataclass(frozen=True)
class Setting:
    """One option value as the recipe has it, with the place of the value and the place of its name."""

    value: Scalar
    where: Position
    name_where: Position


@dataclass(frozen=True)
class Reference:
    """The name of another thing in the recipe, and where it was written."""

    name: str
    where: Position


@dataclass(frozen=True)
class Toolchain:
    """A Python environment: either `packages` (pip requirements) for a `python`, or an existing `interpreter`."""

    name: str
    where: Position
    python: str | None = None
    packages: tuple[str, ...] = ()
    interpreter: str | None = None


@dataclass(frozen=True)
class ModelSource:
    """A source model as written: a path relative to the recipe, or `package:<package>/<file>`."""

    name: str
    where: Position
    path: str
    path_where: Position
    sha256: str | None = None


@dataclass(frozen=True)
class DeviceChoice:
    """Which OrtEpDevice a target wants; None everywhere means the one that the EP's catalog entry prefers."""

    type: Literal["cpu", "gpu", "npu"] | None = None
    vendor: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    virtual: bool = False


@dataclass(frozen=True)
class Target:
    """An EP, a device and options in one toolchain; a matrix has already been expanded into one target per row."""

    name: str
    where: Position
    toolchain: Reference
    ep: Reference
    device: DeviceChoice
    provider_options: Mapping[str, Setting]
    session_options: Mapping[str, Setting]
    allow_unknown_options: bool = False


@dataclass(frozen=True)
class CompileSettings:
    """How an EPContext model is to be written. `external_file`, when set, receives initializers of at least `external_threshold` bytes."""

    embed: bool = False
    graph_optimization_level: GraphOptimization = "disable_all"
    external_file: str | None = None
    external_threshold: int = 1024
    embed_where: Position | None = None


@dataclass(frozen=True)
class Expectation:
    """What must be true of every compiled member: the number of its EPContext nodes, and of nodes left outside the EP."""

    ep_context_nodes: int | None = None
    fallback_nodes: int | None = None
    where: Position | None = None


@dataclass(frozen=True)
class Group:
    """Models that are built together for some targets, in order; globs have been expanded."""

    name: str
    where: Position
    models: tuple[Reference, ...]
    targets: tuple[Reference, ...]
    share_weights: bool
    compile: CompileSettings
    expect: Expectation
    timeout: float | None = None
    """Seconds that one session group may take; None: no limit."""


@dataclass(frozen=True)
class Output:
    """One layout to emit. The templates still hold the names that only a group and a target give: see `recipe.template`."""

    where: Position
    layout: Literal["directory"]
    path: str
    path_where: Position
    model: str
    model_where: Position
    context_binary: str
    context_binary_where: Position


@dataclass(frozen=True)
class Recipe:
    """A whole recipe, read, checked against its schema, and expanded."""

    file: Path
    name: str
    description: str
    toolchains: Mapping[str, Toolchain]
    models: Mapping[str, ModelSource]
    targets: Mapping[str, Target]
    groups: Mapping[str, Group]
    outputs: tuple[Output, ...]

    @property
    def directory(self) -> Path:
        """The folder that the recipe's paths are relative to."""
        return self.file.parent

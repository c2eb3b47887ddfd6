"""Parts of a `Report` about a recipe and its results.

Every value is plain JSON, and an unknown value is null. Sizes are in bytes, and times are in seconds. Descriptions in
`schemas/report.schema.json` come from the docstrings of the fields (`python -m tools.reference --write`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epbuild.onnxfile.read.context_parts import SizePart
from epbuild.recipe.model import MeasuredOn
from epbuild.session.events import Coverage


class ReportedRecipe(Struct, frozen=True):
    """The recipe."""

    name: str
    """Name of the build."""
    description: str
    """Description in the recipe; empty if there is none."""
    path: str
    """Path of the recipe, as given on the command line."""
    sha256: str
    """SHA-256 of the recipe."""


class ReportedMachine(Struct, frozen=True):
    """Machine that created the report."""

    name: str
    """Host name."""
    platform: str
    """Platform, such as `linux-x86_64`."""
    cpu: str
    """Name of the CPU."""
    cpus: int
    """Number of CPUs that a build may use."""
    memory: int | None
    """Bytes of memory that a build may use."""


class ReportedPackage(Struct, frozen=True):
    """Package of a toolchain."""

    name: str
    """Name of the package."""
    version: str
    """Version of the package."""
    sha256: tuple[str, ...]
    """SHA-256 of each file that the lock allows for the package; empty if the package is not locked."""


class ReportedToolchain(Struct, frozen=True):
    """Toolchain of the plan."""

    name: str
    """Name in the recipe."""
    requires: tuple[str, ...]
    """Packages that the recipe requires."""
    interpreter: str | None
    """Interpreter of an existing environment; null if epbuild provisions the toolchain."""
    python: str | None
    """Python implementation and version, such as `cpython-3.11`; null if unknown."""
    platform: str | None
    """Platform, as named by Python; null if unknown."""
    locked: bool
    """True if the toolchain is locked."""
    packages: tuple[ReportedPackage, ...]
    """All packages, sorted by name; empty if unknown."""


class ReportedEp(Struct, frozen=True):
    """EP of a target."""

    ep: str
    """Name of the EP."""
    package: str
    """Package of the EP; empty if the EP is loaded from a library."""
    version: str | None
    """Version of the package; null if unknown."""
    device: str | None
    """Type of the requested device."""
    options: Mapping[str, str]
    """Provider options."""


class ReportedTarget(Struct, frozen=True):
    """Target of the plan."""

    name: str
    """Name of the target."""
    toolchain: str
    """Name of the target's toolchain."""
    platforms: tuple[str, ...]
    """Platforms that the recipe lists for the toolchain; empty if the recipe lists none."""
    soc: str | None
    """Target recorded in the context binaries, such as an SoC; null if unknown."""
    eps: tuple[ReportedEp, ...]
    """EPs in order of priority."""


class ReportedData(Struct, frozen=True):
    """External data file of a model."""

    location: str
    """Location, as written in the graph."""
    size: int
    """Bytes."""
    sha256: str
    """SHA-256."""


class ReportedModel(Struct, frozen=True):
    """Source model of a step."""

    name: str
    """Name in the recipe."""
    groups: tuple[str, ...]
    """Groups that contain the model."""
    source: str
    """Path or address in the recipe, without secrets, or the program that makes the model."""
    sha256: str | None
    """SHA-256 of the graph; null if the model is not on this machine, or if a command makes it."""
    data: tuple[ReportedData, ...]
    """External data files."""
    size: int | None
    """Bytes of the graph and its external data; null if the model is not on this machine."""


class ReportedOperator(Struct, frozen=True):
    """Fallback nodes with the same operator and reason."""

    operator: str
    """Name of the operator, with its domain."""
    count: int
    """Number of nodes."""
    nodes: tuple[str, ...]
    """Names of the nodes."""
    reason: str | None
    """Reason that the EP logged; null if it logged none."""
    advice: tuple[str, ...]
    """Advice from epbuild's catalog."""


class ReportedContext(Struct, frozen=True):
    """Context binary of a model."""

    file: str
    """Name that the compile step gave the file. Outputs may rename it."""
    size: int
    """Bytes."""
    parts: tuple[SizePart, ...]
    """Graphs and shared weights, largest first. The other bytes are headers and padding. Empty if the EP's format lists no parts."""


class ReportedCoverage(Struct, frozen=True):
    """Coverage of a model by the EPs of a target."""

    step: str
    """Step that compiles the model."""
    model: str
    """Name of the model. The group's name precedes it if several groups have a model of this name for the target."""
    member: str
    """Name of the model in its group."""
    group: str
    """Name of the group."""
    target: str
    """Name of the target."""
    outcome: Coverage
    """`whole` and `partial`: the EPs took all nodes, or only some. `on the CPU`: the recipe has `compile: none` for the model.
    `failed`: the model could not be compiled, or does not meet `expect`. `failed verify` and `failed measure`: the model
    was compiled, but its `verify` or `measure` step failed.
    `not built`: the model was never compiled."""
    ep_context_nodes: int | None
    """Number of EPContext nodes; null if nothing was compiled."""
    fallback_nodes: int | None
    """Number of fallback nodes; null if nothing was compiled."""
    outside: tuple[ReportedOperator, ...]
    """Fallback nodes by operator and reason, most frequent first."""
    reason: str | None
    """Reason why nothing was compiled, or why `verify` or `measure` failed."""
    size: int | None
    """Bytes of all files that the model needs. A shared context binary counts in full for each model."""
    seconds: float | None
    """Duration of the compile."""
    accuracy: Mapping[str, float] | None
    """Worst value of each metric among all outputs; null if outputs were not verified."""
    contexts: tuple[ReportedContext, ...] = ()
    """Context binaries of the model. Embedded contexts and those that are not in the store are left out."""


class ReportedFile(Struct, frozen=True):
    """File of an output."""

    path: str
    """Path relative to the output."""
    size: int
    """Bytes."""
    sha256: str
    """SHA-256."""


class ReportedOutput(Struct, frozen=True):
    """Output of the recipe."""

    step: str
    """Step that emits the output."""
    path: str
    """Path, relative to the recipe's folder."""
    layout: str
    """Layout of the output."""
    archive: str | None
    """Format of the archive or image; null for a folder."""
    registry: str | None
    """Image reference in a registry; null if the output is not pushed."""
    groups: tuple[str, ...]
    """Groups of the output's models."""
    targets: tuple[str, ...]
    """Targets of the output's models."""
    in_place: bool
    """True if the output is up to date on disk."""
    key: str | None
    """Action key of the last emitted output; null if nothing was emitted."""
    provenance: str | None
    """Provenance file of the output; null if there is none."""
    size: int
    """Bytes of all files in the output."""
    files: tuple[ReportedFile, ...]
    """Files of the output when it was last emitted."""


class ReportedSharing(Struct, frozen=True):
    """Size of a weight-sharing group for a target, and what sharing saves.

    If `measured` is false, `alone`, `shared` and `saved` are bytes of the sources' weights: the savings are unknown.
    """

    step: str
    """Share step."""
    group: str
    """Name of the group."""
    target: str
    """Name of the target."""
    alone: int
    """Bytes without sharing."""
    shared: int
    """Bytes with sharing."""
    saved: int
    """Bytes that sharing saves."""
    measured: bool
    """True if the sizes were measured by compiling each model alone; false if they were computed from the sources' weights."""
    made: int
    """Bytes of the group's binaries and data."""


class ReportedAccuracy(Struct, frozen=True):
    """Difference between an output of a compiled model and the same output of its source."""

    step: str
    """Verify step."""
    group: str
    """Name of the group."""
    target: str
    """Name of the target."""
    member: str
    """Name of the model in its group."""
    output: str | None
    """Name of the output; null if no output could be compared."""
    outcome: Literal["passed", "failed", "unjudgeable"]
    """Outcome of the comparison."""
    reason: str | None
    """Reason why the output did not pass."""
    figures: Mapping[str, float | None]
    """Values of the metrics, such as `cosine` and `snr_db`; null if undefined or infinite."""
    limits: Mapping[str, float]
    """Thresholds of the metrics."""
    samples: int | None
    """Number of input sets that were compared."""
    evidence: str | None
    """Origin of the inputs: `made` if they were generated, `given` if they were read from files; null if nothing was compared."""
    on: str | None
    """Device and inputs, as text."""
    reference: str | None
    """Model that computed the reference."""


class ReportedMeasurement(Struct, frozen=True):
    """Measured figures of a compiled model."""

    step: str
    """Measure step."""
    group: str
    """Name of the group."""
    target: str
    """Name of the target."""
    member: str
    """Name of the model in its group."""
    figures: Mapping[str, float]
    """Values by name: `load_ms`, `latency_ms.first`, `latency_ms.p50`, `latency_ms.p95` and `peak_memory` (bytes)."""
    limits: Mapping[str, float]
    """Maximum values that the recipe expects, by name."""
    on: MeasuredOn
    """Runner of the model: `device`, an `emulator` of it, or the `cpu` instead of it. Figures of different runners are not comparable."""
    device: str | None
    """Name of the device; null if it is unknown."""
    files: tuple[str, ...]
    """Files that the measurement wrote beside its figures, which are kept beside the log."""

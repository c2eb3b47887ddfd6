"""Parts of a `Report` about a recipe and its results.

Every value is plain JSON, and an unknown value is null. Sizes are in bytes, times in seconds. The docstrings of the fields are the
descriptions in `schemas/report.schema.json` (`python -m tools.reference --write`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from epbuild.session.events import Coverage


class ReportedRecipe(Struct, frozen=True):
    """The recipe."""

    name: str
    """Its name."""
    description: str
    """What it describes itself as; empty where it does not."""
    path: str
    """The file, as the command line has it."""
    sha256: str
    """The SHA-256 of the file."""


class ReportedMachine(Struct, frozen=True):
    """The machine that the report was made on."""

    name: str
    """Its host name."""
    platform: str
    """The platform by epbuild's name, such as `linux-x86_64`, else as Python calls it."""
    cpu: str
    """What the CPU calls itself."""
    cpus: int
    """How many CPUs a build may use."""
    memory: int | None
    """How much memory a build may use."""


class ReportedPackage(Struct, frozen=True):
    """A package of a toolchain."""

    name: str
    """Its name."""
    version: str
    """Its version."""
    sha256: tuple[str, ...]
    """The SHA-256 of each file that the lock lets it be installed from; none where it is not locked."""


class ReportedToolchain(Struct, frozen=True):
    """A toolchain."""

    name: str
    """Its name in the recipe."""
    requires: tuple[str, ...]
    """The packages that the recipe asks for."""
    interpreter: str | None
    """The interpreter of an environment that exists already; null: epbuild makes it."""
    python: str | None
    """Its Python, such as `cpython-3.11`; null while nothing is known of it."""
    platform: str | None
    """The platform as Python calls it; null while nothing is known of it."""
    locked: bool
    """Whether it is made as the recipe's lock has it."""
    packages: tuple[ReportedPackage, ...]
    """All that is in it, by name; none while nothing is known of it."""


class ReportedEp(Struct, frozen=True):
    """An EP of a target."""

    ep: str
    """Its name."""
    package: str
    """The distribution that carries it; empty where it is a library of the user's own."""
    version: str | None
    """The version of that distribution; null while nothing is known of its toolchain."""
    device: str | None
    """The type of the device that it is asked for."""
    options: Mapping[str, str]
    """Its provider options, as it is given them."""


class ReportedTarget(Struct, frozen=True):
    """A target."""

    name: str
    """Its name."""
    toolchain: str
    """The toolchain that it is compiled in."""
    platforms: tuple[str, ...]
    """The platforms that the recipe has its toolchain for; none: any."""
    soc: str | None
    """What a context binary for it names as its target; null where it names none, or that is not known."""
    eps: tuple[ReportedEp, ...]
    """Its EPs, in their order."""


class ReportedData(Struct, frozen=True):
    """A file of external data of a model."""

    location: str
    """What the graph calls it."""
    size: int
    """Its size."""
    sha256: str
    """Its SHA-256."""


class ReportedModel(Struct, frozen=True):
    """A source model that some step begins with."""

    name: str
    """Its name in the recipe."""
    groups: tuple[str, ...]
    """The groups that have it as a member."""
    source: str
    """Where the recipe has it, less secrets of an address."""
    sha256: str | None
    """The SHA-256 of its graph; null while it is not here."""
    data: tuple[ReportedData, ...]
    """Its external data."""
    size: int | None
    """The size of its graph and its external data; null while it is not here."""


class ReportedOperator(Struct, frozen=True):
    """Nodes of one operator that stayed outside the EPs for one reason."""

    operator: str
    """The operator."""
    count: int
    """How many nodes there are."""
    nodes: tuple[str, ...]
    """Their names."""
    reason: str | None
    """Why, as the EP logged it; null where it logged nothing."""
    advice: tuple[str, ...]
    """What the catalog has to do about it."""


class ReportedCoverage(Struct, frozen=True):
    """How far the EPs of a target took a model."""

    step: str
    """The step that compiles it."""
    model: str
    """The model's name, after its group's where several groups have one of that name for the target."""
    member: str
    """The model's name in its group."""
    group: str
    """Its group."""
    target: str
    """The target."""
    outcome: Coverage
    """Whether the EPs took all of it, some of its nodes, or none; `failed verify`: its `verify` failed; `not built`: never compiled."""
    ep_context_nodes: int | None
    """How many EPContext nodes it became; null where nothing was compiled."""
    fallback_nodes: int | None
    """How many nodes stayed outside; null where nothing was compiled."""
    outside: tuple[ReportedOperator, ...]
    """These nodes by operator and reason, most frequent first."""
    reason: str | None
    """Why nothing was compiled, or why its `verify` failed."""
    size: int | None
    """The bytes of all that it takes to run the model; a context binary that models share counts for each of them."""
    seconds: float | None
    """What the compile took, whenever that was."""
    accuracy: Mapping[str, float] | None
    """The worst figures of all its outputs; null where they were not checked."""


class ReportedFile(Struct, frozen=True):
    """A file of an output."""

    path: str
    """Its path, below the output."""
    size: int
    """Its size."""
    sha256: str
    """Its SHA-256."""


class ReportedOutput(Struct, frozen=True):
    """An output that the recipe asks for."""

    step: str
    """The step that emits it."""
    path: str
    """Its place, from the recipe's folder."""
    layout: str
    """Its layout."""
    archive: str | None
    """Format of the archive or image; null for a folder."""
    registry: str | None
    """Image in a registry that it is pushed to."""
    groups: tuple[str, ...]
    """The groups whose models are in it."""
    targets: tuple[str, ...]
    """The targets that they are compiled for."""
    in_place: bool
    """Whether it is there as a build would write it now."""
    key: str | None
    """The key of what lies there; null while nothing was written there."""
    provenance: str | None
    """The file with its provenance; null where it has none."""
    size: int
    """The bytes of all its files."""
    files: tuple[ReportedFile, ...]
    """The files, as they were written the last time."""


class ReportedSharing(Struct, frozen=True):
    """What a sharing group for a target saves, or can save."""

    step: str
    """The step that shares."""
    group: str
    """The group."""
    target: str
    """The target."""
    alone: int
    """The bytes without sharing."""
    shared: int
    """The bytes with it."""
    saved: int
    """The difference."""
    measured: bool
    """Whether these are bytes of what was compiled, each model alone as well; else they are those of the sources' weights."""


class ReportedAccuracy(Struct, frozen=True):
    """How near one output of a compiled model is to that of its source."""

    step: str
    """The step that checks it."""
    group: str
    """The group."""
    target: str
    """The target."""
    member: str
    """The model's name in its group."""
    output: str | None
    """The output; null where none could be looked at."""
    outcome: Literal["passed", "failed", "unjudgeable"]
    """What becomes of it."""
    reason: str | None
    """Why it did not pass."""
    figures: Mapping[str, float | None]
    """Its figures, such as `cosine` and `snr_db`; null: not defined, or no finite number."""
    limits: Mapping[str, float]
    """What they have to come to."""
    samples: int | None
    """How many sets of inputs it was looked at for."""
    evidence: str | None
    """What the inputs are: `made` up, or files."""
    on: str | None
    """The device and the inputs, in words."""
    reference: str | None
    """What it was compared with."""

"""JSON documents of checks: verify, doctor, devices and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from epbuild import __version__
from epbuild.catalog.facts import KnownName
from epbuild.commands.bisect.values import Bisection, PartNode, TensorRow
from epbuild.core.host import count_cpus
from epbuild.core.redact import conceal_text, redact
from epbuild.core.user_folders import find_settings_file, is_missing
from epbuild.report.json.documents import Document, View, build_view
from epbuild.verify.findings import OUTCOMES, Finding, Fitness, Outcome

if TYPE_CHECKING:  # Import for types only: `verify` does not need doctor's checks.
    from epbuild.catalog.entries import EpEntry
    from epbuild.commands.doctor.devices import EpHealth, ToolchainHealth
    from epbuild.commands.doctor.doctor import Diagnoses


class FindingView(View, frozen=True, kw_only=True):
    """Outcome of one check of one file or group."""

    check: str
    """Name of the check, such as `references`, `digests`, `target`, `load` or `numbers`."""
    subject: str
    """Path of the checked file below the artifact's folder, or name of the checked group."""
    outcome: Outcome
    """Outcome of the check. A skipped check was not possible on this machine."""
    message: str
    """Description of the problem or of the measurement, or the reason for skipping the check."""
    code: str | None
    """Error code; null if the check did not fail."""
    hint: str | None
    """Suggested fix."""
    figures: tuple[Mapping[str, Any], ...] | UnsetType = UNSET
    """Metrics of each output, and the kind of inputs that the model was run with. Absent if the model was not run."""
    fitness: Fitness | UnsetType = UNSET
    """Fitness of this machine for the model. Absent unless the check is `here`."""


class FindingsDocument(Document, frozen=True, kw_only=True):
    """Document that `verify --json` prints."""

    path: str
    """Path that was verified."""
    counts: dict[str, int]
    """Number of findings, by outcome."""
    findings: tuple[FindingView, ...]
    """Outcome of each check."""


class VersionDocument(Document, frozen=True, kw_only=True):
    """Document that `version --json` prints: everything about the program and the machine that a report of a bug needs."""

    epbuild: str
    """Version of epbuild."""
    python: str
    """Version of Python that runs epbuild."""
    implementation: str
    """Implementation of Python, such as `CPython`."""
    system: str
    """Operating system with its version and processor architecture."""
    cpus: int
    """Number of CPUs that this process may use."""
    packages: dict[str, str]
    """Versions of the installed packages that epbuild uses, by name."""
    settings: str | None
    """File with the user's settings, or null if there is none."""


def build_version_document() -> VersionDocument:
    """Return the document of `version --json`."""
    import platform  # Import here: only this document needs these modules.
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    from epbuild.commands.doctor.health import EXTRAS

    packages: dict[str, str] = {}
    requirements: list[str] = []
    with suppress(PackageNotFoundError):  # epbuild runs from a checkout that is not installed
        requirements = requires("epbuild") or []
    for requirement in map(Requirement, sorted(requirements)):
        is_used = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *EXTRAS))
        with suppress(PackageNotFoundError):
            packages |= {requirement.name: version(requirement.name)} if is_used else {}
    settings = find_settings_file()
    return VersionDocument(
        epbuild=__version__,
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        system=platform.platform(),
        cpus=count_cpus(),
        packages=packages,
        settings=None if settings is None or is_missing(settings) else settings,
    )


def build_findings_document(path: Path, findings: Sequence[Finding]) -> FindingsDocument:
    """Return the document of `verify --json`: every finding, and the number of each outcome."""
    counts = Counter(finding.outcome for finding in findings)
    return FindingsDocument(
        path=path.as_posix(),
        counts={outcome: counts[outcome] for outcome in OUTCOMES},
        findings=tuple(
            build_view(FindingView, finding, figures=finding.figures or UNSET, fitness=finding.fitness or UNSET)
            for finding in findings
        ),
    )


class CheckView(View, frozen=True, kw_only=True):
    """Check of this machine."""

    topic: str
    """Topic, such as `python`, `cache`, `toolchain` or `ep`. The schema lists all topics."""
    state: str
    """`ok`, `note`, `warning` or `error`. With an `error`, builds fail."""
    text: str
    """Result of the check."""
    hint: str | None
    """Suggested fix."""
    code: str | None
    """Error code that a build would report."""
    name: str | None
    """Name that distinguishes checks of the same topic, such as a toolchain's name; null if the topic has only one check."""


class AttemptView(View, frozen=True, kw_only=True):
    """Attempt to compile and load a small model with an EP."""

    target: str
    """Target of the compile: from the recipe, or an example."""
    seconds: float | None
    """Duration of the compile; null if it failed."""
    opened: bool
    """True if the compiled model was loaded."""
    why: str
    """Reason why the model was not compiled or loaded; empty if it was loaded."""
    unfit: bool
    """True if the attempt failed because this machine lacks the device or the driver."""
    compiled: bool
    """True if the model was compiled."""


class DeviceView(View, frozen=True, kw_only=True):
    """Device as ONNX Runtime reports it."""

    type: str
    """Type, such as `cpu`, `gpu` or `npu`."""
    vendor: str
    """Vendor of the device."""
    metadata: dict[str, str]
    """Metadata of the device and of the EP."""


class EpView(View, frozen=True, kw_only=True):
    """EP of a toolchain with its devices."""

    ep: str
    """Name of the EP in ONNX Runtime."""
    packages: str
    """Packages of the EP, with versions."""
    devices: tuple[DeviceView, ...]
    """Devices of the EP."""
    emulated: bool
    """True if the devices only emulate the device that the EP compiles for."""
    read_callback: bool | None
    """True if the EP can read context binaries through a callback of the application; null if this is unknown."""
    missing: str | None
    """Reason why ONNX Runtime lacks the EP; null if it has the EP."""
    limit: str | None
    """Reason why the EP cannot compile on this machine, from the catalog; null if the EP can compile."""
    attempt: AttemptView | None
    """Attempt to compile and load a small model; null if there was none."""


class ToolchainView(View, frozen=True, kw_only=True):
    """Toolchain with its EPs."""

    name: str | None
    """Name in the recipe; null without a recipe."""
    packages: str
    """Packages of the toolchain, or its interpreter."""
    onnxruntime: str | None
    """Version of ONNX Runtime; null if it is missing or does not load."""
    eps: tuple[EpView, ...]
    """EPs of the toolchain."""


class DevicesDocument(Document, frozen=True, kw_only=True):
    """Document that `devices --json` prints."""

    epbuild: str = __version__
    """Version of epbuild."""
    healthy: bool
    """True if no check failed."""
    toolchains: tuple[ToolchainView, ...]
    """Toolchains of the recipe or, without a recipe, the newest toolchains on this machine."""


class KnownNamesDocument(Document, frozen=True, kw_only=True):
    """Document that `devices --ep EP --json` prints."""

    ep: str
    """Name of the EP."""
    options: Mapping[str, tuple[KnownName, ...]]
    """Known values, by option of the EP."""


def build_known_names_document(ep: str, entries: Sequence[EpEntry]) -> KnownNamesDocument:
    """Return the document of `devices --ep EP --json`."""
    tables = {option: table for entry in entries for option, table in entry.names.items()}
    return KnownNamesDocument(ep=ep, options={option: table.rows for option, table in tables.items()})


class HealthDocument(Document, frozen=True, kw_only=True):
    """Document that `doctor --json` prints. Its schema is `schemas/doctor.schema.json`."""

    epbuild: str = __version__
    """Version of epbuild."""
    healthy: bool
    """True if no check failed."""
    checks: tuple[CheckView, ...]
    """Results of the checks, in order."""
    toolchains: tuple[ToolchainView, ...]
    """Toolchains of the recipe or, without a recipe, the newest toolchains on this machine."""


def build_health_document(found: Diagnoses) -> HealthDocument:
    """Return the document of `doctor --json`."""
    return HealthDocument(
        healthy=found.is_healthy,
        checks=tuple(
            build_view(CheckView, check, text=redact(conceal_text(check.text)), name=check.name or None) for check in found.checks
        ),
        toolchains=tuple(map(_build_toolchain_view, found.toolchains)),
    )


def build_devices_document(found: Diagnoses) -> DevicesDocument:
    """Return the document of `devices --json`."""
    return DevicesDocument(healthy=found.is_healthy, toolchains=tuple(map(_build_toolchain_view, found.toolchains)))


def _build_toolchain_view(found: ToolchainHealth) -> ToolchainView:
    return build_view(ToolchainView, found, name=found.name or None, eps=tuple(map(_build_ep_view, found.eps)))


def _build_ep_view(found: EpHealth) -> EpView:
    tried = found.attempt
    attempt = None if tried is None else build_view(AttemptView, tried, compiled=tried.seconds is not None)
    return build_view(EpView, found, missing=found.missing or None, limit=found.limit or None, attempt=attempt)


class BisectionDocument(Document, frozen=True, kw_only=True):
    """Document that `bisect --json` prints."""

    step: str
    """Id of the compile step."""
    model: str
    """Name of the model."""
    target: str
    """Name of the target."""
    fault: Literal["compile", "fallback", "numbers", "source"] | None
    """Kind of fault: the part does not compile, is not taken by the EP, computes other values, or is NaN on the CPU EP too."""
    message: str
    """Result in one sentence."""
    reason: str
    """Error of the EP, or metrics of the wrong value. May be empty."""
    advice: tuple[str, ...]
    """Suggested fixes."""
    compiles: int
    """Number of compiles, including those whose result was in the store."""
    nodes: int
    """Number of nodes of the model, without constants."""
    part: tuple[PartNode, ...]
    """Nodes of the faulty part. Empty without a fault."""
    complete: bool
    """False if the search reached its maximum number of compiles, so that a smaller part may exist."""
    tensors: tuple[TensorRow, ...]
    """Values before and after the first wrong node. Empty for other faults."""
    files: tuple[str, ...]
    """Files that reproduce the fault."""


def build_bisection_document(found: Bisection) -> BisectionDocument:
    """Return the document of a search for a fault."""
    return build_view(BisectionDocument, found)

"""JSON documents of checks: verify, diff, doctor and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType, field

from epbuild import __version__
from epbuild.core.redact import concealed, redacted
from epbuild.report.json.documents import Document, View, view
from epbuild.verify.findings import Finding

if TYPE_CHECKING:  # `verify` and `diff` do not need the checks of doctor
    from epbuild.commands.doctor.devices import EpHealth, ToolchainHealth
    from epbuild.commands.doctor.doctor import Diagnoses
    from epbuild.diff.difference import Comparison


class FindingView(View, frozen=True, kw_only=True):
    """Outcome of one check of one file or group."""

    check: str
    subject: str
    outcome: str
    message: str
    code: str | None
    hint: str | None
    figures: tuple[Mapping[str, Any], ...] | UnsetType = UNSET
    """Metrics of a model that was run."""


class FindingsDocument(Document, frozen=True, kw_only=True):
    """`verify --json`."""

    path: str
    counts: dict[str, int]
    findings: tuple[FindingView, ...]


class DifferenceView(View, frozen=True, kw_only=True):
    """Fact that differs between two artifacts."""

    sense: str
    what: str
    kind: str
    artifact: str
    place: tuple[str, ...]
    old: Any
    new: Any


class SizeView(View, frozen=True, kw_only=True):
    """Size of a file in two artifacts."""

    kind: str
    name: str
    artifact: str
    before: int | None = field(name="old")
    after: int | None = field(name="new")


class ComparisonDocument(Document, frozen=True, kw_only=True):
    """`diff --json`: the verdict, every fact that differs, and the sizes of all files."""

    a: str
    b: str
    equal: bool
    accepted: bool
    verdict: str
    senses: tuple[str, ...]
    same: tuple[str, ...]
    without_manifest: tuple[str, ...]
    differences: tuple[DifferenceView, ...]
    sizes: tuple[SizeView, ...]


def findings_document(path: Path, findings: Sequence[Finding]) -> FindingsDocument:
    """Return `verify --json`: every finding, and the number of each outcome."""
    counts = Counter(finding.outcome for finding in findings)
    return FindingsDocument(
        path=path.as_posix(),
        counts={outcome: counts[outcome] for outcome in ("failed", "skipped", "passed")},
        findings=tuple(view(FindingView, finding, figures=finding.figures or UNSET) for finding in findings),
    )


def comparison_document(old: str, new: str, found: Comparison) -> ComparisonDocument:
    """Return `diff --json`."""
    return view(ComparisonDocument, found, a=old, b=new, equal=not found.differences)


class CheckView(View, frozen=True, kw_only=True):
    """Check of this machine."""

    topic: str
    state: str
    text: str
    hint: str | None
    code: str | None
    name: str | None


class AttemptView(View, frozen=True, kw_only=True):
    """Compile of a small model with an EP."""

    target: str
    seconds: float | None
    opened: bool
    why: str
    unfit: bool
    compiled: bool


class DeviceView(View, frozen=True, kw_only=True):
    """Device as ONNX Runtime reports it."""

    type: str
    vendor: str
    metadata: dict[str, str]


class EpView(View, frozen=True, kw_only=True):
    """EP of a toolchain with its devices."""

    ep: str
    packages: str
    devices: tuple[DeviceView, ...]
    emulated: bool
    missing: str | None
    limit: str | None
    attempt: AttemptView | None


class ToolchainView(View, frozen=True, kw_only=True):
    """Toolchain with its EPs."""

    name: str | None
    packages: str
    onnxruntime: str | None
    eps: tuple[EpView, ...]


class DevicesDocument(Document, frozen=True, kw_only=True):
    """`devices --json`."""

    epbuild: str = __version__
    healthy: bool
    toolchains: tuple[ToolchainView, ...]


class HealthDocument(Document, frozen=True, kw_only=True):
    """`doctor --json`, whose schema is `schemas/doctor.schema.json`."""

    epbuild: str = __version__
    healthy: bool
    checks: tuple[CheckView, ...]
    toolchains: tuple[ToolchainView, ...]


def health_document(found: Diagnoses) -> HealthDocument:
    """Return `doctor --json`."""
    return HealthDocument(
        healthy=found.is_healthy,
        checks=tuple(
            view(CheckView, check, text=redacted(concealed(check.text)), name=check.name or None) for check in found.checks
        ),
        toolchains=tuple(map(_toolchain, found.toolchains)),
    )


def devices_document(found: Diagnoses) -> DevicesDocument:
    """Return `devices --json`."""
    return DevicesDocument(healthy=found.is_healthy, toolchains=tuple(map(_toolchain, found.toolchains)))


def _toolchain(found: ToolchainHealth) -> ToolchainView:
    return view(ToolchainView, found, name=found.name or None, eps=tuple(map(_ep, found.eps)))


def _ep(found: EpHealth) -> EpView:
    tried = found.attempt
    attempt = None if tried is None else view(AttemptView, tried, compiled=tried.seconds is not None)
    return view(EpView, found, missing=found.missing or None, limit=found.limit or None, attempt=attempt)

"""JSON documents of checks and comparisons of artifacts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType, field

from epbuild.report.json.documents import Document, View, view
from epbuild.verify.findings import Finding

if TYPE_CHECKING:
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

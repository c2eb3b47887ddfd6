"""JSON documents of the store, its garbage collection, and remote caches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from epbuild.cache.collect import Reason
from epbuild.cache.entries import KINDS, CacheEntry, Kind
from epbuild.commands.cache import CacheCheck, CacheStats, DamagedEntry
from epbuild.commands.remote_cache import CheckedResult, Push, PushedResult, RemoteCheck
from epbuild.report.json.documents import Document, ProblemView, View, build_problem_views, build_view

if TYPE_CHECKING:
    from epbuild.cache.collect import Limits
    from epbuild.commands.gc import Collection


class SumView(View, frozen=True, kw_only=True):
    """Number and size of entries."""

    count: int = 0
    """Number of entries."""
    bytes: int = 0
    """Total size of the entries."""


class ToolchainsView(View, frozen=True, kw_only=True):
    """Number and size of the environments in a folder."""

    place: str
    """Path of the folder."""
    count: int
    """Number of environments."""
    bytes: int
    """Total size of the environments."""


class CacheStatsDocument(Document, frozen=True, kw_only=True):
    """Document that `cache --json` prints."""

    place: str
    """Path of the store."""
    things: dict[str, SumView]
    """Number and size of entries, by kind."""
    toolchains: ToolchainsView
    """Number and size of the provisioned toolchain environments."""
    workspaces: list[str]
    """Workspaces that use the store."""


class RemovedView(View, frozen=True, kw_only=True):
    """Entry that `gc` removed, with the reason."""

    kind: Kind
    """Kind of the entry."""
    name: str
    """Name of the entry, which is a digest or a key."""
    bytes: int
    """Size of the entry."""
    reason: Reason
    """Reason for the removal."""


class KeptView(View, frozen=True, kw_only=True):
    """Entries that `gc` kept, by reason and kind."""

    needed: dict[str, SumView]
    """Entries that a workspace needs, by kind."""
    recent: dict[str, SumView]
    """Entries that were used recently, by kind."""


class CollectionDocument(Document, frozen=True, kw_only=True):
    """Document that `gc --json` prints."""

    place: str
    """Path of the store."""
    dry_run: bool
    """True for `--dry-run`: nothing was removed, and the other keys describe what would be removed."""
    max_age: float | int
    """Seconds after which unused results are removed."""
    max_size: int | None
    """Maximum size of the store in bytes; null for no limit."""
    removed: list[RemovedView]
    """Entries that were removed."""
    kept: KeptView
    """Entries that were kept."""
    bytes_removed: int
    """Bytes that were removed."""
    bytes_left: int
    """Bytes that remain in the store."""
    workspaces: list[str]
    """Workspaces that use the store."""
    gone_workspaces: list[str]
    """Workspaces that no longer exist."""


class KeyDocument(Document, frozen=True, kw_only=True):
    """Document that `cache key --json` prints."""

    signing_key: str
    """Secret key, for EPBUILD_SIGNING_KEY."""
    trust: str
    """Public key, for `cache.trust` in a recipe."""


class CacheCheckDocument(Document, frozen=True, kw_only=True):
    """Document that `cache verify --json` prints."""

    place: str
    """Path of the store."""
    blobs: int
    """Number of blobs that were checked."""
    records: int
    """Number of records that were checked."""
    size: int = field(name="bytes")
    """Bytes that were read."""
    damaged: tuple[DamagedEntry, ...]
    """Damaged entries, which were quarantined."""


class PushDocument(Document, frozen=True, kw_only=True):
    """Document that `cache push --json` prints."""

    remote: str
    """Address of the remote cache."""
    results: tuple[PushedResult, ...]
    """Outcome for each result."""
    sent_bytes: int
    """Bytes that were uploaded."""
    seconds: float
    """Duration of the push."""
    warnings: tuple[ProblemView, ...]
    """Warnings."""


class RemoteCheckDocument(Document, frozen=True, kw_only=True):
    """Document that `cache verify --remote --json` prints."""

    remote: str
    """Address of the remote cache."""
    results: tuple[CheckedResult, ...]
    """Outcome for each result."""
    received_bytes: int
    """Bytes that were downloaded."""
    seconds: float
    """Duration of the check."""
    warnings: tuple[ProblemView, ...]
    """Warnings."""


def build_cache_stats_document(found: CacheStats) -> CacheStatsDocument:
    """Return the document of `cache --json`."""
    count, size = found.toolchains
    return CacheStatsDocument(
        place=str(found.place),
        things={_pluralize(kind): SumView(count=count, bytes=size) for kind, (count, size) in found.entries.items()},
        toolchains=ToolchainsView(place=str(found.toolchain_place), count=count, bytes=size),
        workspaces=[*map(str, found.workspaces)],
    )


def build_collection_document(place: Path, found: Collection, limits: Limits, *, dry_run: bool) -> CollectionDocument:
    """Return the document of `gc --json`."""
    collected = found.collected
    return CollectionDocument(
        place=str(place),
        dry_run=dry_run,
        max_age=limits.max_age,
        max_size=limits.max_size,
        removed=[
            RemovedView(kind=entry.kind, name=entry.name, bytes=entry.size, reason=reason) for entry, reason in collected.removed
        ],
        kept=KeptView(needed=_sum_by_kind(collected.needed), recent=_sum_by_kind(collected.recent)),
        bytes_removed=sum(entry.size for entry, _ in collected.removed),
        bytes_left=collected.left,
        workspaces=[*map(str, found.workspaces)],
        gone_workspaces=[*map(str, found.gone)],
    )


def build_cache_check_document(place: Path, found: CacheCheck) -> CacheCheckDocument:
    """Return the document of `cache verify --json`."""
    return build_view(CacheCheckDocument, found, place=str(place))


def build_push_document(done: Push) -> PushDocument:
    """Return the document of `cache push --json`."""
    return build_view(PushDocument, done, warnings=build_problem_views(done.warnings))


def build_remote_check_document(found: RemoteCheck) -> RemoteCheckDocument:
    """Return the document of `cache verify --remote --json`."""
    return build_view(RemoteCheckDocument, found, warnings=build_problem_views(found.warnings))


def _sum_by_kind(entries: Iterable[CacheEntry]) -> dict[str, SumView]:
    sizes: dict[Kind, list[int]] = {kind: [] for kind in KINDS}
    for entry in entries:
        sizes[entry.kind].append(entry.size)
    return {_pluralize(kind): SumView(count=len(found), bytes=sum(found)) for kind, found in sizes.items()}


def _pluralize(kind: Kind) -> str:
    return kind if kind == "damaged" else f"{kind}s".replace(" ", "_")

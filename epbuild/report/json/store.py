"""JSON documents of the store, its collection and remote caches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from epbuild.cache.entries import KINDS, CacheEntry, Kind
from epbuild.commands.cache import CacheCheck, CacheStats, DamagedEntry
from epbuild.commands.remote_cache import CheckedResult, Push, PushedResult, RemoteCheck
from epbuild.report.json.documents import Document, ProblemView, View, problem_views, view

if TYPE_CHECKING:
    from epbuild.cache.collect import Limits
    from epbuild.commands.gc import Collection


class SumView(View, frozen=True, kw_only=True):
    """Number and size of entries."""

    count: int = 0
    bytes: int = 0


class ToolchainsView(View, frozen=True, kw_only=True):
    """Number and size of the environments in a folder."""

    place: str
    count: int
    bytes: int


class CacheStatsDocument(Document, frozen=True, kw_only=True):
    """`cache --json`."""

    place: str
    things: dict[str, SumView]
    toolchains: ToolchainsView
    workspaces: list[str]


class RemovedView(View, frozen=True, kw_only=True):
    """Entry that a collection removed, and why."""

    kind: str
    name: str
    bytes: int
    reason: str


class KeptView(View, frozen=True, kw_only=True):
    """Entries that a collection kept, by reason and kind."""

    needed: dict[str, SumView]
    recent: dict[str, SumView]


class CollectionDocument(Document, frozen=True, kw_only=True):
    """`gc --json`."""

    place: str
    dry_run: bool
    max_age: float | int
    max_size: int | None
    removed: list[RemovedView]
    kept: KeptView
    bytes_removed: int
    bytes_left: int
    workspaces: list[str]
    gone_workspaces: list[str]


class CacheCheckDocument(Document, frozen=True, kw_only=True):
    """`cache verify --json`."""

    place: str
    blobs: int
    records: int
    size: int = field(name="bytes")
    damaged: tuple[DamagedEntry, ...]


class PushDocument(Document, frozen=True, kw_only=True):
    """`cache push --json`."""

    remote: str
    results: tuple[PushedResult, ...]
    sent_bytes: int
    seconds: float
    warnings: tuple[ProblemView, ...]


class RemoteCheckDocument(Document, frozen=True, kw_only=True):
    """`cache verify --remote --json`."""

    remote: str
    results: tuple[CheckedResult, ...]
    received_bytes: int
    seconds: float
    warnings: tuple[ProblemView, ...]


def cache_stats_document(found: CacheStats) -> CacheStatsDocument:
    """Return `cache --json`."""
    count, size = found.toolchains
    return CacheStatsDocument(
        place=str(found.place),
        things={_plural(kind): SumView(count=count, bytes=size) for kind, (count, size) in found.entries.items()},
        toolchains=ToolchainsView(place=str(found.toolchain_place), count=count, bytes=size),
        workspaces=[*map(str, found.workspaces)],
    )


def collection_document(place: Path, found: Collection, limits: Limits, *, dry_run: bool) -> CollectionDocument:
    """Return `gc --json`."""
    collected = found.collected
    return CollectionDocument(
        place=str(place),
        dry_run=dry_run,
        max_age=limits.max_age,
        max_size=limits.max_size,
        removed=[
            RemovedView(kind=entry.kind, name=entry.name, bytes=entry.size, reason=reason) for entry, reason in collected.removed
        ],
        kept=KeptView(needed=_sums(collected.needed), recent=_sums(collected.recent)),
        bytes_removed=sum(entry.size for entry, _ in collected.removed),
        bytes_left=collected.left,
        workspaces=[*map(str, found.workspaces)],
        gone_workspaces=[*map(str, found.gone)],
    )


def cache_check_document(place: Path, found: CacheCheck) -> CacheCheckDocument:
    """Return `cache verify --json`."""
    return view(CacheCheckDocument, found, place=str(place))


def push_document(done: Push) -> PushDocument:
    """Return `cache push --json`."""
    return view(PushDocument, done, warnings=problem_views(done.warnings))


def remote_check_document(found: RemoteCheck) -> RemoteCheckDocument:
    """Return `cache verify --remote --json`."""
    return view(RemoteCheckDocument, found, warnings=problem_views(found.warnings))


def _sums(entries: Iterable[CacheEntry]) -> dict[str, SumView]:
    sizes: dict[Kind, list[int]] = {kind: [] for kind in KINDS}
    for entry in entries:
        sizes[entry.kind].append(entry.size)
    return {_plural(kind): SumView(count=len(found), bytes=sum(found)) for kind, found in sizes.items()}


def _plural(kind: Kind) -> str:
    return kind if kind == "damaged" else f"{kind}s".replace(" ", "_")

"""Contents of the cache, counted and checked for damage."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.cache.blobs import BlobStore
from epbuild.cache.entries import KINDS, CacheEntry, Kind, list_files_below
from epbuild.cache.errors import DamagedBlob, MissingBlob, NewerRecord
from epbuild.cache.garbage import Garbage
from epbuild.cache.leases import lease
from epbuild.cache.records import ActionRecords, open_address_records
from epbuild.cache.roots import Roots
from epbuild.commands.gc import LEASE, get_blob_sizes, open_workspace
from epbuild.core.errors import Cancelled, StoreError
from epbuild.plan.result import open_action_records
from epbuild.toolchain.identity import open_toolchain_records

_THREADS = min(4, os.cpu_count() or 1)
_BATCH = 256


ReportBytes = Callable[[int, int], object]
"""Function that receives the number of bytes done and the total number of bytes. It is called from any thread, one call at a time."""


def ignore_bytes(done: int, total: int) -> None:
    """Ignore progress in bytes."""


class CacheStats(Struct, frozen=True):
    """Number and bytes of each kind of cache entry, and the workspaces that use the cache."""

    place: Path
    entries: Mapping[Kind, tuple[int, int]]
    toolchain_place: Path
    toolchains: tuple[int, int]
    workspaces: tuple[Path, ...]


class DamagedEntry(Struct, frozen=True):
    """Damaged blob or record of the cache, with the results that it belonged to."""

    kind: str
    """`blob` or `record`."""
    name: str
    """Digest of the blob, or key of the record."""
    why: str
    """Description of the damage."""
    part_of: tuple[str, ...]
    """Results that the entry belonged to."""


@dataclass
class CacheCheck:
    """Result of a check of the whole cache."""

    blobs: int = 0
    records: int = 0
    size: int = 0
    damaged: list[DamagedEntry] = field(default_factory=list)


def count_cache(root: Path, toolchains: Path) -> CacheStats:
    """Count the entries of the store at `root`, and the toolchain environments. Writes nothing. Raises StoreError."""
    found: dict[Kind, tuple[int, int]] = dict.fromkeys(KINDS, (0, 0))
    kinds = (open_action_records(root), open_address_records(root), open_toolchain_records(root))
    records = itertools.chain.from_iterable(each.entries() for each in kinds)
    for entry in itertools.chain(BlobStore(root).entries(), records, Garbage(root).entries()):
        count, size = found[entry.kind]
        found[entry.kind] = (count + 1, size + entry.size)
    environments = [path for path in toolchains.iterdir() if (path / "env").is_dir()] if toolchains.is_dir() else []
    size = sum(status.st_size for path in environments for _, status in list_files_below(path))
    existing, _ = Roots(root).list_workspaces()
    return CacheStats(root, found, toolchains, (len(environments), size), tuple(existing))


def check_cache(root: Path, progress: ReportBytes = ignore_bytes, cancelled: threading.Event | None = None) -> CacheCheck:
    """Read all blobs and records of the store, and quarantine damaged ones, so that the next build restores them.

    Return the counts and the damaged entries. Raises StoreError. Raises Cancelled after `cancelled` is set.
    """
    found = CacheCheck()
    if not root.is_dir():
        return found
    stop = cancelled or threading.Event()
    with lease(root, LEASE, cancelled=stop):
        bad = _check_blobs(BlobStore(root), found, progress, stop)
        lost, broken = _check_records(root, found, bad)
    if bad or lost or broken:
        steps, uses = _find_origins(Roots(root).list_workspaces()[0], lost)
        found.damaged += [DamagedEntry("blob", digest, why, tuple(uses.get(digest, ()))) for digest, why in bad.items()]
        found.damaged += [DamagedEntry("record", key, why, tuple(steps.get(key, ()))) for key, why in broken.items()]
    return found


def _check_blobs(store: BlobStore, found: CacheCheck, progress: ReportBytes, stop: threading.Event) -> dict[str, str]:
    from concurrent.futures import ThreadPoolExecutor

    total = sum(entry.size for entry in store.entries())
    lock = threading.Lock()

    def read(count: int) -> None:
        if stop.is_set():
            raise Cancelled("verify")
        with lock:
            found.size += count
            progress(found.size, total)

    def check(entry: CacheEntry) -> str | None:
        try:
            store.check(entry.name, read)
        except MissingBlob:  # Another process removed the blob after the listing.
            return None
        except DamagedBlob:
            return "the content does not match the digest"
        except StoreError as error:
            return error.problems[0].message
        return None

    bad: dict[str, str] = {}
    entries = store.entries()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="verify")
    try:
        # Check blobs in batches: a store may contain any number of blobs.
        while batch := list(itertools.islice(entries, _BATCH)):
            for entry, why in zip(batch, pool.map(check, batch), strict=True):
                found.blobs += 1
                if why is not None:
                    bad[entry.name] = why
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return bad


def _check_records(root: Path, found: CacheCheck, bad: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Quarantine broken records. Return the records that refer to `bad` blobs, and the faults of broken records by key."""
    store, records = BlobStore(root), open_action_records(root)
    lost: list[Mapping[str, Any]] = []
    broken: dict[str, str] = {}
    for key, record in _read_records(records, found, broken):
        blobs = get_blob_sizes(record["result"])
        log = record["result"]["log"]["digest"]
        # If another machine built the result, its log may be only in the remote cache.
        missing = [digest for digest, size in blobs.items() if not store.has(digest, size) and (digest != log or digest in bad)]
        if missing and not bad.keys() & missing:
            broken[key] = f"the record refers to a missing blob: {missing[0]}"
        elif missing:
            lost.append(record)
        else:
            continue
        records.set_aside(key)
    for others in (open_address_records(root), open_toolchain_records(root)):
        for _ in _read_records(others, found, broken):
            pass  # Builds fetch missing addresses again, and toolchain records have no blobs.
    return lost, broken


def _read_records(records: ActionRecords, found: CacheCheck, broken: dict[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the readable records with their keys. Quarantine damaged records, and add their faults to `broken`."""
    for entry in records.entries():
        found.records += 1
        try:
            record = records.peek(entry.name)
        except NewerRecord:
            continue
        if record is not None:
            yield entry.name, record
        elif not records.has(entry.name):
            broken[entry.name] = "the record is incomplete"


def _find_origins(
    workspaces: Iterable[Path], lost: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, list[str]], dict[str, dict[str, None]]]:
    """Return the steps of workspaces by action key, and the name of each blob in each step by digest.

    The names of blobs that no workspace knows come from `lost`, the quarantined records that refer to damaged blobs.
    """
    steps: dict[str, list[str]] = {}
    blobs: dict[str, dict[str, None]] = {}
    for directory in workspaces:
        with open_workspace(directory) as workspace:
            for _, step in workspace.steps():
                if "artifacts" in step.result:
                    name = f"{step.step} in {directory.parent}"
                    steps.setdefault(step.action_key, []).append(name)
                    _add_blob_names(blobs, step.result, f" of {name}")
    lost_blobs: dict[str, dict[str, None]] = {}
    for record in lost:
        _add_blob_names(lost_blobs, record["result"], f", {_describe_origin(record['document'])}")
    return steps, lost_blobs | blobs


def _describe_origin(document: Mapping[str, Any]) -> str:
    """Describe the result of an unknown step by the inputs in its key document."""
    if document.get("kind") == "prepare":
        return f"prepared from {', '.join(document['source'])}" if document["source"] else "made by a command"
    return f"compiled from {', '.join(member['name'] for member in document['members'])}"


def _add_blob_names(found: dict[str, dict[str, None]], result: Mapping[str, Any], of: str) -> None:
    """Add the name of each blob in a result to `found`, by digest. The suffix `of`, added to each name, says which step it is from."""
    for name, blob in (*result["artifacts"].items(), ("the log", result["log"])):
        found.setdefault(blob["digest"], {})[f"{name}{of}"] = None

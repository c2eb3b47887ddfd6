"""Looks after the store: what is in it, whether all of it is sound, and what no build needs any more.

The store knows blobs and records; here is known what a record says and what a workspace needs.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epbuild.cache.blobs import BlobStore
from epbuild.cache.collect import Collected, Limits, Needs, collect
from epbuild.cache.entries import KINDS, Kind, Thing, files_below
from epbuild.cache.errors import DamagedBlob, MissingBlob, NewerRecord
from epbuild.cache.garbage import Leftovers
from epbuild.cache.leases import Cancelled, lease
from epbuild.cache.memory import Configuration
from epbuild.cache.records import ActionRecords, address_records
from epbuild.cache.roots import Roots
from epbuild.cache.workspace import Workspace
from epbuild.compile.result_shape import action_records, is_action_record
from epbuild.core.errors import Problem, StoreError
from epbuild.survey.orphans import RESULTS, files_of

Told = Callable[[int, int], None]
"""Is told how many bytes were checked, and how many there are."""

_LEASE = "upkeep"  # who removes and who checks do not meet
_THREADS = min(4, os.cpu_count() or 1)
_BATCH = 256
_REMOTE_FACT = "remote "  # what the workspace remembers of where a remote model is (`RemoteModels`)


@dataclass(frozen=True)
class Stock:
    """What is in a store: for each kind of thing how many there are and their bytes; and the workspaces that build with it."""

    place: Path
    things: Mapping[Kind, tuple[int, int]]
    toolchain_place: Path
    toolchains: tuple[int, int]
    workspaces: tuple[Path, ...]


@dataclass(frozen=True)
class Damage:
    """Something in the store that is not what it should be: a blob or a record, by its digest or key, and what it was part of."""

    kind: str
    name: str
    why: str
    part_of: tuple[str, ...]


@dataclass
class Verification:
    """What a check of the whole store found."""

    blobs: int = 0
    records: int = 0
    size: int = 0
    damaged: list[Damage] = field(default_factory=list)


@dataclass(frozen=True)
class Tidied:
    """What came of making the store smaller; the workspaces that build with it, and those that are gone and were forgotten."""

    collected: Collected
    workspaces: tuple[Path, ...]
    gone: tuple[Path, ...]


def stock(root: Path, toolchains: Path) -> Stock:
    """What is in the store at `root`, and in the folder of all environments. Writes nothing. Raises StoreError."""
    found: dict[Kind, tuple[int, int]] = dict.fromkeys(KINDS, (0, 0))
    records = itertools.chain.from_iterable(each.things() for each in (action_records(root), address_records(root)))
    for thing in itertools.chain(BlobStore(root).things(), records, Leftovers(root).things()):
        count, size = found[thing.kind]
        found[thing.kind] = (count + 1, size + thing.size)
    environments = [path for path in toolchains.iterdir() if (path / "env").is_dir()] if toolchains.is_dir() else []
    size = sum(status.st_size for path in environments for _, status in files_below(path))
    there, _ = Roots(root).workspaces()
    return Stock(root, found, toolchains, (len(environments), size), tuple(there))


def tidy(root: Path, limits: Limits, *, dry_run: bool = False) -> Tidied:
    """Remove what no workspace needs and what exceeds the limits; with `dry_run`, only find out what that would be.

    Raises StoreError, also when it cannot be told what a workspace needs; then nothing is removed.
    """
    if not root.is_dir():
        return Tidied(Collected(), (), ())
    roots = Roots(root)
    with nullcontext() if dry_run else lease(root, _LEASE):
        there, gone = roots.workspaces()
        collected = collect(root, limits, lambda: needs(roots.workspaces()[0], root), blobs_of, now=time.time(), dry_run=dry_run)
        for workspace in () if dry_run else gone:
            roots.forget(workspace)
    return Tidied(collected, tuple(there), tuple(gone))


def needs(workspaces: Iterable[Path], root: Path) -> Needs:
    """What workspaces need of the store at `root`: the results that outputs in place were made of, those that no output was made of yet
    and that each recipe was built with last, and the remote models that were fetched. Raises StoreError.
    """
    keys: set[str] = set()
    blobs: set[str] = set()
    models: set[str] = set()
    for directory in workspaces:
        with _opened(directory) as workspace:
            wanted = _needed_keys(workspace)
            keys |= wanted
            results = [step.result for _, step in workspace.steps() if step.action_key in wanted]
            blobs.update(digest for result in results for digest in _blobs(result))
            for graph in map(Path, workspace.facts(_REMOTE_FACT).values()):
                if graph.is_relative_to(root):
                    models.add("/".join(graph.relative_to(root).parts[:2]))
    return Needs(frozenset(keys), frozenset(blobs), frozenset(models))


def _needed_keys(workspace: Workspace) -> set[str]:
    """The action keys of the results that a workspace needs.

    Settings that a recipe was once built with are needed no longer than an output of theirs is in place, or they were the last ones.
    """
    steps = workspace.steps()
    standing = [output for output in workspace.outputs() if any(path.is_file() for path in files_of(output, workspace.base))]
    last = {configuration.recipe: configuration for configuration, _ in sorted(steps, key=lambda item: item[1].finished)}
    live = {*last.values(), *(owner for output in standing for owner in output.owners)}
    made, emitted = dict[Configuration, set[str]](), dict[Configuration, set[str]]()
    for configuration, step in steps:
        if RESULTS in step.result:
            emitted.setdefault(configuration, set()).update(step.result[RESULTS])
        else:
            made.setdefault(configuration, set()).add(step.action_key)
    pending = {key for configuration in live for key in made.get(configuration, set()) - emitted.get(configuration, set())}
    return pending.union(*(output.results for output in standing))


def blobs_of(record: Mapping[str, Any]) -> Iterable[str]:
    """The digests of the blobs that an action record names: its artifacts and its log; none for one that is not as builds read it."""
    return _blobs(record["result"]).keys() if is_action_record(record) else ()


def verify(root: Path, told: Told, cancelled: threading.Event | None = None) -> Verification:
    """Read every blob and every record of the store; what is damaged is set aside, so that the next build makes it again.

    Raises StoreError, and Cancelled when `cancelled` is set.
    """
    found = Verification()
    if not root.is_dir():
        return found
    stop = cancelled or threading.Event()
    with lease(root, _LEASE, cancelled=stop):
        bad = _check_blobs(BlobStore(root), found, told, stop)
        lost, broken = _check_records(root, found, bad)
    if bad or lost or broken:
        origins = _Origins(Roots(root).workspaces()[0])
        found.damaged += [Damage("blob", digest, why, origins.of_blob(digest, lost)) for digest, why in bad.items()]
        found.damaged += [Damage("record", key, why, origins.of_key(key)) for key, why in broken.items()]
    return found


def _check_blobs(store: BlobStore, found: Verification, told: Told, stop: threading.Event) -> dict[str, str]:
    """What is wrong with each bad blob, by its digest."""
    from concurrent.futures import ThreadPoolExecutor

    total = sum(thing.size for thing in store.things())
    lock = threading.Lock()

    def read(count: int) -> None:
        if stop.is_set():
            raise Cancelled("verify")
        with lock:
            found.size += count
            told(found.size, total)

    def check(thing: Thing) -> str | None:
        try:
            store.check(thing.name, read)
        except MissingBlob:  # it went while the others were read
            return None
        except DamagedBlob:
            return "its bytes are not those that it is named by"
        except StoreError as error:
            return error.problems[0].message
        return None

    bad: dict[str, str] = {}
    things = store.things()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="verify")
    try:
        # A few at a time: a store may hold any number.
        while batch := list(itertools.islice(things, _BATCH)):
            for thing, why in zip(batch, pool.map(check, batch), strict=True):
                found.blobs += 1
                if why is not None:
                    bad[thing.name] = why
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return bad


def _check_records(root: Path, found: Verification, bad: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """The records that lost one of the `bad` blobs, and what is wrong with each broken record, by its key; all are set aside."""
    store, records = BlobStore(root), action_records(root)
    lost: list[Mapping[str, Any]] = []
    broken: dict[str, str] = {}
    for key, record in _read(records, found, broken):
        blobs = _blobs(record["result"])
        missing = [digest for digest, size in blobs.items() if not store.has(digest, size)]
        if missing and not bad.keys() & missing:
            broken[key] = f"it names a blob that is not there: {missing[0]}"
        elif missing:
            lost.append(record)
        else:
            continue
        records.set_aside(key)
    for _ in _read(address_records(root), found, broken):
        pass  # an address whose content has gone is fetched again
    return lost, broken


def _read(records: ActionRecords, found: Verification, broken: dict[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records that this epbuild can read, by their keys; of each damaged one, which reading sets aside, what is wrong is noted."""
    for thing in records.things():
        found.records += 1
        try:
            record = records.look(thing.name)
        except NewerRecord:
            continue
        if record is not None:
            yield thing.name, record
        elif not records.has(thing.name):
            broken[thing.name] = "it is not a whole record"


class _Origins:
    """What blobs and records were part of, as far as workspaces know."""

    def __init__(self, workspaces: Iterable[Path]) -> None:
        self._steps: list[tuple[str, str, Mapping[str, Any]]] = []
        for directory in workspaces:
            with _opened(directory) as workspace:
                self._steps += [
                    (f"{step.step} in {directory.parent}", step.action_key, step.result)
                    for _, step in workspace.steps()
                    if "artifacts" in step.result
                ]

    def of_key(self, key: str) -> tuple[str, ...]:
        return tuple(name for name, action_key, _ in self._steps if action_key == key)

    def of_blob(self, digest: str, records: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """The steps that have the blob, each with its name there; where no workspace knows any, what the records say."""
        known = [f"{name} of {step}" for step, _, result in self._steps for name in _names(result, digest)]
        if not known:
            known = [
                f"{name}, {_made_from(record['document'])}" for record in records for name in _names(record["result"], digest)
            ]
        return tuple(dict.fromkeys(known))


def _made_from(document: Mapping[str, Any]) -> str:
    """What a result is, by the document of its key, where nobody knows its step."""
    if document.get("kind") == "prepare":
        return f"prepared from {', '.join(document['source'])}"
    return f"compiled from {', '.join(member['name'] for member in document['members'])}"


@contextmanager
def _opened(directory: Path) -> Iterator[Workspace]:
    """A workspace whose memory can be relied on: what it does not name, it does not need."""
    with Workspace.open(directory, create=False) as workspace:
        if workspace.unreadable:
            message = f"what {directory} needs is not known: this user may not read its state.sqlite"
            hint = "Do this as the user whose workspace it is, or get permission to read it."
            raise StoreError(Problem("EPB508", message, hint=hint))
        yield workspace


def _blobs(result: Any) -> dict[str, int]:
    """The sizes of the blobs that a session group's result names, by digest."""
    match result:
        case {"artifacts": dict(artifacts), "log": dict(log)}:
            named = (*artifacts.values(), log)
            return {blob["digest"]: blob["size"] for blob in named if {"digest", "size"} <= blob.keys()}
    return {}


def _names(result: Mapping[str, Any], digest: str) -> list[str]:
    """What a blob is called in a result."""
    names = [name for name, blob in result["artifacts"].items() if blob["digest"] == digest]
    return [*names, *(["the log"] if result["log"]["digest"] == digest else [])]

"""Garbage collection of the store: what it removes, what it keeps, and that concurrent builds lose nothing."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.collect import Limits, collect
from epbuild.cache.garbage import Needs
from epbuild.cache.leases import lease
from epbuild.cache.records import RECORD_FORMAT, ActionRecords
from epbuild.core.canonical import encode_canonical
from epbuild.core.errors import StoreError
from tests.cache.aged_stores import DAY, EVERYTHING, MONTH, AgedStore, Users, key_of

REMOTE = "c" * 64
PARTIAL = "d" * 64


@pytest.fixture
def store(tmp_path: Path) -> AgedStore:
    return AgedStore(tmp_path)


def test_results_unused_for_a_month_are_removed_with_their_blobs(store: AgedStore) -> None:
    store.record("old", "old binary", days=31)
    young = store.record("young", "young binary", days=29)
    found = store.collect()
    assert (store.keys(), store.held()) == ({young}, {"young binary"})
    assert [(thing.kind, reason) for thing, reason in found.removed] == [("record", "unused"), ("blob", "unused")]
    assert [thing.kind for thing in found.recent] == ["record", "blob"]
    assert found.left == sum(path.stat().st_size for path in store.root.rglob("*") if path.is_file())


def test_needed_results_stay_at_any_age_and_size(store: AgedStore) -> None:
    needed = store.record("needed", "needed binary", days=4000)
    named = store.blob("named by a workspace alone", days=4000)
    store.record("other", "other binary", days=4000)
    found = store.collect(Limits(0, 0), Needs(frozenset({needed}), frozenset({named.digest})))
    assert (store.keys(), store.held()) == ({needed}, {"needed binary", "named by a workspace alone"})
    assert sorted(thing.kind for thing in found.needed) == ["blob", "blob", "record"]


def test_needed_results_count_as_used_now(store: AgedStore) -> None:
    needed = store.record("needed", "binary", days=4000)
    store.collect(needs=Needs(frozenset({needed})))
    store.collect()
    assert store.keys() == {needed}


def test_blob_is_as_young_as_its_youngest_record(store: AgedStore) -> None:
    young = store.record("young", "shared", days=3)
    store.record("old", "shared", "of the old one", days=50)
    store.collect()
    assert (store.keys(), store.held()) == ({young}, {"shared"})


def test_finding_a_record_refreshes_its_age(store: AgedStore) -> None:
    key = store.record("found", "binary", days=31)
    assert store.records.get(key) is not None
    store.collect()
    assert store.keys() == {key}


def test_peeking_at_a_record_does_not_refresh_its_age(store: AgedStore) -> None:
    key = store.record("seen", "binary", days=31)
    assert store.records.peek(key) == {"blobs": [store.blob("binary", 31).digest]}
    store.collect()
    assert store.keys() == set()


def test_storing_content_again_refreshes_its_blob(store: AgedStore) -> None:
    store.blob("lonely", days=31)
    store.add("lonely")
    store.collect()
    assert store.held() == {"lonely"}


def test_size_limit_removes_only_the_longest_unused_results(store: AgedStore) -> None:
    keys = [store.record(f"{days} days", f"{days}" * 5000, days=days) for days in range(1, 10)]
    found = store.collect(Limits(30 * DAY, 22_000))
    assert store.keys() == set(keys[:4])
    assert store.held() == {f"{days}" * 5000 for days in range(1, 5)}
    assert {reason for _, reason in found.removed} == {"over size"}
    assert found.left <= 22_000
    store.collect(Limits(30 * DAY, found.left - 1))
    assert store.keys() == set(keys[:3])
    assert store.held() == {f"{days}" * 5000 for days in range(1, 4)}, "no blob stays without its record"


def test_results_used_within_the_hour_stay_despite_limits(store: AgedStore) -> None:
    store.record("fresh", "binary", days=0.9 / 24)
    store.blob("not yet named by a record", days=0.9 / 24)
    store.collect(Limits(0, 0))
    assert store.held() == {"binary", "not yet named by a record"}
    store.collect(Limits(0, 0), now=time.time() + 3600)
    assert store.held() == set()


def test_dry_run_of_collection_reports_the_same_and_changes_nothing(store: AgedStore) -> None:
    store.record("old", "a", "b", days=31)
    needed = store.record("needed", "c", days=31)
    store.file(f"cas/damaged/{PARTIAL}", "bad", 1)

    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in store.root.rglob("*") if path.is_file()}

    before = state()
    told = store.collect(needs=Needs(frozenset({needed})), dry_run=True)
    assert state() == before
    assert store.collect(needs=Needs(frozenset({needed}))) == told
    assert len(told.removed) == 4


@pytest.mark.parametrize("in_between", ["get", "put"])
def test_record_used_during_its_removal_stays_with_its_blobs(store: AgedStore, in_between: str) -> None:
    key = store.record("used", "binary", days=31)

    def use(record: Mapping[str, Any]) -> None:
        if in_between == "get":
            assert store.records.get(key) == record
        else:
            store.records.put(key, record)

    found = collect(store.root, EVERYTHING, Users(Needs(), read=use), now=time.time())
    assert (store.keys(), store.held(), found.removed) == ({key}, {"binary"}, [])
    assert store.records.get(key) is not None
    assert list((store.root / "actions" / "tmp").iterdir()) == []


def test_blob_stored_during_its_removal_stays(store: AgedStore) -> None:
    store.record("old", "binary", days=31)

    users = Users(Needs(), read=lambda record: store.add("binary"))
    found = collect(store.root, EVERYTHING, users, now=time.time())
    assert store.held() == {"binary"}
    assert [thing.kind for thing, _ in found.removed] == ["record"]


def test_killed_collection_leaves_no_record_without_its_blobs(store: AgedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [store.record(f"{number}", f"binary {number}", "shared", days=40 + number) for number in range(4)]
    removed = []
    real = Path.unlink

    class Killed(BaseException):
        pass

    def unlink(path: Path, **options: object) -> None:
        removed.append(path)
        if len(removed) == 4:
            raise Killed
        real(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(Killed):
        store.collect()
    monkeypatch.undo()
    left = store.keys()
    assert left < set(names)
    for key in left:
        record = store.records.peek(key)
        assert record is not None
        assert all(store.blobs.find(digest) for digest in record["blobs"])
    store.collect()
    assert (store.keys(), store.held()) == (set(), set())


def test_abandoned_partial_download_is_removed(store: AgedStore) -> None:
    store.file(f"cas/partial/{PARTIAL}", "half", 31)
    store.file(f"cas/partial/{PARTIAL}.json", "{}", 31)
    fresh = store.file(f"cas/partial/{REMOTE}", "half", 1)
    with lease(store.root, f"fetch-{PARTIAL}"):
        assert store.collect().removed == []
    assert [thing.name for thing, _ in store.collect().removed] == [f"cas/partial/{PARTIAL}"]
    assert list((store.root / "cas" / "partial").iterdir()) == [fresh]


def test_unneeded_remote_model_is_removed_completely(store: AgedStore) -> None:
    name = f"remote/{REMOTE}"
    graph = store.file(f"{name}/model.onnx", "graph", 31)
    data = store.file(f"{name}/weights/model.data", "data", 31)
    for file in (graph, data):
        file.chmod(0o444)
    note = store.file(f"remote/actions/aa/{PARTIAL}.json", "{}", 31)
    store.age(graph.parent, 31)
    assert [thing.name for thing in store.collect(needs=Needs(models=frozenset({name}))).needed] == [name]
    assert store.collect().removed == [], "needed a moment ago"
    store.age(graph.parent, 31)
    with lease(store.root, f"remote-{REMOTE}"):
        assert store.collect().removed == []
    assert [(thing.name, thing.size) for thing, _ in store.collect().removed] == [(name, len("graphdata"))]
    assert not graph.parent.exists()
    assert note.exists()


def test_remote_model_needed_during_its_removal_stays(store: AgedStore) -> None:
    name = f"remote/{REMOTE}"
    graph = store.file(f"{name}/model.onnx", "graph", 31)
    store.age(graph.parent, 31)
    users = Users(Needs(), Needs(models=frozenset({name})))
    collect(store.root, MONTH, users, now=time.time())
    assert graph.exists()


def test_damaged_files_set_aside_are_removed_at_once(store: AgedStore) -> None:
    store.file(f"cas/damaged/{PARTIAL}", "bad", 0)
    store.file(f"actions/damaged/{PARTIAL}.json", "bad", 0)
    assert {reason for _, reason in store.collect().removed} == {"damaged"}
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_store_with_records_of_a_newer_epbuild_is_left_alone(store: AgedStore) -> None:
    store.record("old", "binary", days=31)
    newer = {"format": RECORD_FORMAT + 1, "key": key_of("newer"), "record": {}}
    newer["sha256"] = hashlib.sha256(encode_canonical(newer).encode()).hexdigest()
    store.file(f"actions/{key_of('newer')[:2]}/{key_of('newer')}.json", encode_canonical(newer) + "\n", 31)
    with pytest.raises(StoreError) as failure:
        store.collect()
    assert failure.value.problems[0].code == "EPB506"
    assert store.held() == {"binary"}


def test_missing_store_counts_as_an_empty_store(tmp_path: Path) -> None:
    assert AgedStore(tmp_path / "none").collect().left == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_concurrent_builds_lose_no_found_or_stored_results(
    store: AgedStore,
) -> None:
    window = 1.5  # instead of an hour: longer use is not guaranteed to builders
    store.records = ActionRecords(store.root, fresh=window / 10)
    over = threading.Event()
    lost: list[str] = []
    hits = removed = 0

    def build(seed: int) -> None:
        nonlocal hits
        choice = random.Random(seed)
        while not over.is_set():
            number = choice.randrange(6)
            key, contents = key_of(str(number)), [f"own {number}", f"shared {number % 2}"]
            record = store.records.get(key)
            if record is None:
                blobs = [store.add(content).digest for content in contents]
                store.records.put(key, {"blobs": blobs})
                record = {"blobs": blobs}
            else:
                hits += 1
            try:
                assert [store.blobs.read_bytes(digest).decode() for digest in record["blobs"]] == contents
            except StoreError as error:
                lost.append(str(error))
            over.wait(choice.choice([0.0, 0.01, window, 2 * window]))

    builders = [threading.Thread(target=build, args=(seed,)) for seed in range(4)]
    for builder in builders:
        builder.start()
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        removed += len(store.collect(EVERYTHING, now=time.time() + 3600 - window).removed)
    over.set()
    for builder in builders:
        builder.join()
    assert lost == []
    assert hits
    assert removed

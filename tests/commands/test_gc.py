"""`epbuild gc`: files that builds need stay, and damage is found, reported and repaired."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from epbuild.cache.collect import Limits
from epbuild.cache.records import ActionRecords
from epbuild.cache.workspace import Workspace
from epbuild.commands.cache import check_cache, count_cache
from epbuild.commands.gc import Collection, collect_garbage, find_needed_entries
from epbuild.core.errors import Cancelled, StoreError
from epbuild.recipe.model import ModelSpec
from epbuild.session import planning
from epbuild.session.planning import RemoteModels
from tests.support.fake_builds import CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop

NOTHING_OLD = Limits(0)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path / "project", tmp_path / "cache", monkeypatch)


@pytest.fixture
def built(workshop: Workshop) -> Workshop:
    workshop.build()
    return workshop


def let_time_pass(cache: Path, days: float = 100) -> None:
    then = time.time() - days * 86400
    for path in cache.rglob("*"):
        os.utime(path, (then, then))


def removed(found: Collection) -> list[str]:
    return sorted(thing.kind for thing, _ in found.collected.removed)


def record_files(cache: Path) -> list[Path]:
    return list((cache / "actions").glob("??/*.json"))


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def blob_of(built: Workshop, step: str, name: str) -> Path:
    digest: str = built.record(step).result["artifacts"][name]["digest"]
    return built.cache / "cas" / "sha256" / digest[:2] / digest


def test_store_is_excluded_from_backups_and_workspace_from_git(built: Workshop) -> None:
    assert (built.cache / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    assert (built.folder / ".epbuild" / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_collection_keeps_results_of_the_last_build_at_any_age(built: Workshop) -> None:
    let_time_pass(built.cache)
    found = collect_garbage(built.cache, Limits(0, 0))
    assert (removed(found), found.workspaces) == ([], (built.folder / ".epbuild",))
    built.output().rename(built.folder / "elsewhere")
    assert built.build().restored == 0
    assert built.compiled == []
    assert built.output().is_dir()


def test_collection_keeps_shared_results_until_both_checkouts_are_gone(
    built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = built.checkout(tmp_path / "other", monkeypatch)
    other.build()
    built.folder.rename(tmp_path / "moved away")
    let_time_pass(built.cache)
    found = collect_garbage(built.cache, NOTHING_OLD)
    assert (removed(found), found.gone) == ([], (built.folder / ".epbuild",))
    other.folder.rename(tmp_path / "moved as well")
    let_time_pass(built.cache)
    assert set(removed(collect_garbage(built.cache, NOTHING_OLD))) == {"blob", "record"}
    assert (built.blobs(), record_files(built.cache)) == ([], [])
    assert collect_garbage(built.cache, NOTHING_OLD).gone == ()


def test_moved_checkout_is_registered_by_its_next_build(built: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built.folder.rename(tmp_path / "moved")
    built.folder = tmp_path / "moved"
    collect_garbage(built.cache, NOTHING_OLD)
    built.build()
    let_time_pass(built.cache)
    assert removed(collect_garbage(built.cache, NOTHING_OLD)) == []


def test_results_of_an_earlier_recipe_expire(built: Workshop) -> None:
    before = len(built.blobs())
    let_time_pass(built.cache, days=20)
    built.write_recipe(("quality: 3", "quality: 1"))
    built.build()
    assert removed(collect_garbage(built.cache, Limits(30 * 86400))) == []
    built.write_recipe()
    built.build()
    assert built.compiled == []
    built.write_recipe(("quality: 3", "quality: 1"))
    built.build()
    let_time_pass(built.cache, days=31)
    assert "record" in removed(collect_garbage(built.cache, Limits(30 * 86400)))
    assert len(built.blobs()) == before
    assert built.build().current == len(STEPS)


def test_results_of_deleted_outputs_are_not_needed(built: Workshop) -> None:
    kept = built.record(SHARE)
    assert built.record(CLASSIFIER).action_key != kept.action_key
    for file in built.output("classifier").iterdir():
        file.unlink()
    assert find_needed_entries([built.folder / ".epbuild"], built.cache).keys == {kept.action_key}
    let_time_pass(built.cache)
    collect_garbage(built.cache, NOTHING_OLD)
    assert {path.stem for path in record_files(built.cache)} == {kept.action_key}


def test_remote_model_known_to_a_workspace_is_kept(built: Workshop) -> None:
    graph = built.cache / "remote" / ("a" * 64) / "model.onnx"
    graph.parent.mkdir(parents=True)
    graph.write_bytes(b"graph")
    model = ModelSpec("m", remote_place := built.survey().plan.emissions[EMIT_DECODER].where, "https://m.example/m", remote_place)
    with Workspace.open(built.folder / ".epbuild") as workspace:
        workspace.record_fact(planning._make_fact_name(model), str(graph))
        let_time_pass(built.cache)
        assert removed(collect_garbage(built.cache, NOTHING_OLD)) == []
        assert RemoteModels(workspace, None).known(model) == graph  # type: ignore[arg-type]
        workspace.forget_facts([planning._make_fact_name(model)])
    let_time_pass(built.cache)
    assert removed(collect_garbage(built.cache, NOTHING_OLD)) == ["remote model"]


def test_collection_stops_if_a_workspace_is_unreadable(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    let_time_pass(built.cache)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError) as failure:
        collect_garbage(built.cache, NOTHING_OLD)
    assert failure.value.problems[0].code == "EPB508"
    assert len(record_files(built.cache)) == 2


def test_dry_run_of_collection_forgets_no_workspace(built: Workshop, tmp_path: Path) -> None:
    built.folder.rename(tmp_path / "moved")
    for _ in range(2):
        assert collect_garbage(built.cache, NOTHING_OLD, dry_run=True).gone == (built.folder / ".epbuild",)


def test_collection_does_not_create_a_missing_store(tmp_path: Path) -> None:
    collect_garbage(tmp_path / "none", NOTHING_OLD)
    assert check_cache(tmp_path / "none").blobs == 0
    assert count_cache(tmp_path / "none", tmp_path / "none").workspaces == ()
    assert list(tmp_path.iterdir()) == []


def test_build_with_nothing_to_do_needs_no_writable_store(built: Workshop) -> None:
    roots = built.cache / "roots"
    for path in sorted(roots.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    roots.rmdir()
    roots.write_bytes(b"no folder")
    assert built.build().current == len(STEPS)


@pytest.mark.slow
def test_concurrent_builds_and_collections_keep_outputs_complete(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the hour of grace to a moment, so that entries vanish while builds want them. Outputs must still be correct."""
    clock, late = time.time, 700.0  # so that every use is noted
    monkeypatch.setattr(time, "time", lambda: clock() + late)
    over = threading.Event()
    collections = 0
    expected = built.contents()

    def collect_repeatedly() -> None:
        nonlocal collections
        while not over.is_set():
            collections += bool(collect_garbage(built.cache, Limits(0, young=late + 0.3)).collected.removed)

    collector = threading.Thread(target=collect_repeatedly)
    collector.start()
    try:
        for turn in range(12):
            built.write_recipe(*([("quality: 3", "quality: 1")] if turn % 2 == 0 else []))
            assert built.build().exit_code == 0
            time.sleep(0.3)
    finally:
        over.set()
        collector.join()
    assert built.contents() == expected
    assert collections > 0


def test_undamaged_store_passes_the_check(built: Workshop) -> None:
    read: list[tuple[int, int]] = []
    found = check_cache(built.cache, lambda *bytes_read: read.append(bytes_read))
    size = sum(path.stat().st_size for path in built.blobs())
    assert (found.blobs, found.records, found.size, found.damaged) == (len(built.blobs()), 2, size, [])
    assert max(read) == (size, size)


def test_damaged_blob_is_reported_with_its_result_and_rebuilt(built: Workshop) -> None:
    bad = blob_of(built, SHARE, "prefill_ctx_qnn.bin")
    content = bad.read_bytes()
    overwrite(bad, content[:-1] + b"?")
    [damage] = check_cache(built.cache).damaged
    assert (damage.kind, damage.name) == ("blob", bad.name)
    assert damage.part_of == (f"prefill_ctx_qnn.bin of {SHARE} in {built.folder}",)
    assert check_cache(built.cache).damaged == [], "it is told once"
    for file in built.output().iterdir():
        file.unlink()
    assert built.build().exit_code == 0
    assert built.compiled == ["prefill+decode"]
    assert bad.read_bytes() == content


def test_damage_unknown_to_workspaces_is_described_by_the_record(built: Workshop, tmp_path: Path) -> None:
    bad = blob_of(built, SHARE, "prefill_ctx_qnn.bin")
    overwrite(bad, b"short")
    built.folder.rename(tmp_path / "moved")
    [damage] = check_cache(built.cache).damaged
    assert damage.part_of == ("prefill_ctx_qnn.bin, compiled from prefill, decode",)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"{", "the record is incomplete"), (None, "the record is incomplete"), (b"", "the record is incomplete")],
)
def test_damaged_record_is_reported_and_set_aside(built: Workshop, content: bytes | None, why: str) -> None:
    record = built.record(CLASSIFIER)
    [place] = [path for path in record_files(built.cache) if path.stem == record.action_key]
    if content is None:
        ActionRecords(built.cache).put(place.stem, {"document": {}})
    else:
        place.write_bytes(content)
    [damage] = check_cache(built.cache).damaged
    assert (damage.kind, damage.name, damage.why) == ("record", place.stem, why)
    assert damage.part_of == (f"{CLASSIFIER} in {built.folder}",)
    assert not place.exists()
    assert check_cache(built.cache).damaged == []


def test_record_with_a_missing_blob_is_reported(built: Workshop) -> None:
    lost = blob_of(built, CLASSIFIER, "classifier_ctx_qnn.bin")
    lost.chmod(0o644)  # Windows does not remove read-only files
    lost.unlink()
    [damage] = check_cache(built.cache).damaged
    assert (damage.kind, damage.why) == ("record", f"the record refers to a missing blob: {lost.name}")
    assert len(record_files(built.cache)) == 1


def test_check_can_be_cancelled(built: Workshop) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        check_cache(built.cache, cancelled=cancelled)


@pytest.fixture
def toolchains(tmp_path: Path) -> Path:
    environment = tmp_path / "toolchains" / "abc" / "env" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_bytes(b"12345")
    (tmp_path / "toolchains" / "interpreters").mkdir()
    return tmp_path / "toolchains"


def test_store_summary_counts_every_kind_of_entry(built: Workshop, toolchains: Path) -> None:
    for place in ("cas/partial/" + "b" * 64, "cas/damaged/" + "c" * 64, "remote/" + "d" * 64 + "/m.onnx"):
        (built.cache / place).parent.mkdir(parents=True, exist_ok=True)
        (built.cache / place).write_bytes(b"1234")
    found = count_cache(built.cache, toolchains)
    assert found.entries["blob"] == (len(built.blobs()), sum(path.stat().st_size for path in built.blobs()))
    assert found.entries["record"] == (2, sum(path.stat().st_size for path in record_files(built.cache)))
    assert found.entries["partial download"] == found.entries["damaged"] == found.entries["remote model"] == (1, 4)
    assert found.toolchains == (1, 5)
    assert found.workspaces == (built.folder / ".epbuild",)

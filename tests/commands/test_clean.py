"""`epbuild clean`: it removes only epbuild's own files, and the next build compiles nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cache.leases import lease
from epbuild.cache.roots import Roots
from epbuild.commands.clean import check_idle, clean, remove_workspace
from epbuild.core.directory import swap_in
from epbuild.core.errors import PlanError, StoreError
from epbuild.publish.removal import Cleaned
from epbuild.survey.orphans import get_lease_name
from epbuild.survey.snapshot import get_snapshot_path
from epbuild.toolchain.process import Ending
from tests.core.fake_windows import keep_file
from tests.support.fake_builds import CLASSIFIER, COMPILES, EMIT_CLASSIFIER, EMIT_DECODER, SHARE, STEPS, Workshop, tamper
from tests.support.moments import at_each_call

GONE = dict.fromkeys(STEPS, "restorable") | {EMIT_DECODER: "new", EMIT_CLASSIFIER: "new"}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "project", tmp_path / "cache", monkeypatch)
    workshop.build()
    return workshop


def cleaned(built: Workshop, *steps: str, force: bool = False, dry_run: bool = False) -> dict[str, Cleaned]:
    request = replace(built.request, selection=steps)
    return {found.step: found for found in clean(request, force=force, dry_run=dry_run)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_clean_removes_every_output_and_the_next_build_restores_all(built: Workshop) -> None:
    before = built.contents() | built.contents("classifier")
    found = cleaned(built)
    assert sorted(found) == sorted([EMIT_DECODER, EMIT_CLASSIFIER])
    assert sum(len(item.removed) for item in found.values()) == 7
    assert sum(item.size for item in found.values()) > 0
    assert not (built.folder / "dist").exists()
    assert built.states() == GONE
    assert built.build().exit_code == 0
    assert built.compiled == []
    assert built.contents() | built.contents("classifier") == before


def test_clean_removes_only_the_requested_steps(built: Workshop) -> None:
    assert list(cleaned(built, "emit:decoder/*")) == [EMIT_DECODER]
    assert not built.output().exists()
    assert built.output("classifier").is_dir()
    assert built.states() == dict.fromkeys(STEPS, "current") | {EMIT_DECODER: "new"}
    assert cleaned(built, COMPILES[0]) == {}
    assert {built.states()[step] for step in (*COMPILES, SHARE)} == {"restorable"}
    assert built.states()[CLASSIFIER] == "current"


def test_clean_refuses_a_glob_without_a_match(built: Workshop) -> None:
    with pytest.raises(PlanError, match="EPB240"):
        cleaned(built, "emit:nothing/*")
    assert built.states() == dict.fromkeys(STEPS, "current")


def test_clean_keeps_files_of_the_user(built: Workshop) -> None:
    own = {"notes.txt": b"mine", "deep/er/data.bin": b"mine too"}
    for name, content in own.items():
        (built.output() / name).parent.mkdir(parents=True, exist_ok=True)
        (built.output() / name).write_bytes(content)
    found = cleaned(built)[EMIT_DECODER]
    assert found.kept == dict.fromkeys(sorted(own), "not made by epbuild")
    assert files(built.folder / "dist") == {f"decoder/{name}": content for name, content in own.items()}
    assert cleaned(built, force=True)[EMIT_DECODER].kept == found.kept, "force is not for these"
    assert files(built.output()) == own
    built.build()
    assert own.items() < built.contents().items()


def test_clean_keeps_links_of_the_user_and_their_targets(built: Workshop, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "manifest.json").write_bytes((built.output() / "manifest.json").read_bytes())
    (built.output() / "manifest.json").unlink()
    (built.output() / "manifest.json").symlink_to(tmp_path / "elsewhere" / "manifest.json")
    (built.output() / "more").symlink_to(tmp_path / "elsewhere")
    assert cleaned(built, force=True)[EMIT_DECODER].kept == dict.fromkeys(["manifest.json", "more"], "not made by epbuild")
    assert sorted(path.name for path in built.output().iterdir()) == ["manifest.json", "more"]
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["prefill_qnn.bin", "manifest.json"])
def test_clean_keeps_changed_files_without_force(built: Workshop, name: str) -> None:
    edited = built.output() / name
    tamper(edited, bytes(reversed(edited.read_bytes())))
    for _ in range(2):
        assert cleaned(built)[EMIT_DECODER].kept == {name: "changed since"}
        assert list(built.contents()) == [name]
    assert cleaned(built, force=True)[EMIT_DECODER].removed == (name,)
    assert not built.output().exists()
    assert built.build().exit_code == 0
    assert built.compiled == []


def test_clean_keeps_a_file_that_changes_during_removal(built: Workshop) -> None:
    edited = built.output() / "prefill_qnn.bin"

    with at_each_call(swap_in, lambda call: edited.write_bytes(b"edited in the last moment")):
        cleaned(built, "emit:decoder/*")
    assert built.contents() == {"prefill_qnn.bin": b"edited in the last moment"}


def test_killed_clean_has_already_removed_the_snapshot(built: Workshop) -> None:
    snapshot = Path(str(get_snapshot_path(str(built.request.recipe), (), ())))
    snapshot.parent.mkdir(exist_ok=True)
    snapshot.write_bytes(b"nothing to do")

    def kill(call: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), at_each_call(swap_in, kill):
        cleaned(built)
    assert not snapshot.exists()


def test_dry_run_of_clean_reports_the_same_and_changes_nothing(built: Workshop) -> None:
    (built.output() / "notes.txt").write_bytes(b"mine")
    before = files(built.folder / "dist")
    told = cleaned(built, dry_run=True)
    assert files(built.folder / "dist") == before
    assert built.states() == dict.fromkeys(STEPS, "current")
    assert cleaned(built) == told


def test_second_clean_removes_nothing(built: Workshop) -> None:
    cleaned(built)
    assert [item.removed for item in cleaned(built).values()] == [(), ()]
    assert not (built.folder / "dist").exists()


def test_clean_without_a_state_file_reads_the_manifest(built: Workshop) -> None:
    (built.output() / "notes.txt").write_bytes(b"mine")
    tamper(built.output() / "prefill_qnn.bin", b"?" * (built.output() / "prefill_qnn.bin").stat().st_size)
    remove_workspace(built.request.recipe)
    found = cleaned(built)[EMIT_DECODER]
    assert found.kept == {"notes.txt": "not made by epbuild", "prefill_qnn.bin": "changed since"}
    assert sorted(built.contents()) == ["notes.txt", "prefill_qnn.bin"]
    assert not (built.folder / ".epbuild").exists(), "taking back makes no workspace"


def test_clean_leaves_foreign_folders_alone(built: Workshop, tmp_path: Path) -> None:
    built.output().rename(tmp_path / "elsewhere")
    built.output().symlink_to(tmp_path / "elsewhere")
    assert cleaned(built)[EMIT_DECODER].kept == {"": "not made by epbuild"}
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()
    assert built.output().is_symlink()


def test_clean_removes_a_half_swapped_output_of_a_killed_build(built: Workshop) -> None:
    built.output().rename(built.output().with_name(".decoder.epbuild-old-5678abcd"))
    assert len(cleaned(built)[EMIT_DECODER].removed) == 4
    assert not (built.folder / "dist").exists()


def test_clean_counts_no_file_that_windows_keeps(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    before = built.contents()

    with monkeypatch.context() as patched:
        keep_file(patched, "prefill_qnn.bin")
        found = cleaned(built)[EMIT_DECODER]
    assert (len(found.removed), found.kept) == (3, {"prefill_qnn.bin": "in use"})
    assert found.size == sum(len(content) for name, content in before.items() if name != "prefill_qnn.bin")
    assert [path.name for path in (built.folder / "dist").rglob("*.bin")] == ["prefill_qnn.bin"]
    assert cleaned(built)[EMIT_DECODER].removed == ()
    assert not (built.folder / "dist").exists()


def test_clean_waits_for_a_build_that_emits_the_output(built: Workshop) -> None:
    started, done = threading.Event(), threading.Event()

    def clean_decoder() -> None:
        started.set()
        cleaned(built, EMIT_DECODER)
        done.set()

    thread = threading.Thread(target=clean_decoder)
    with lease(built.folder / ".epbuild", get_lease_name("dist/decoder")):
        thread.start()
        started.wait(5)
        assert not done.wait(0.3)
        assert built.output().is_dir()
    thread.join(5)
    assert done.is_set()
    assert not built.output().exists()


def test_store_restores_outputs_after_the_workspace_is_removed(built: Workshop) -> None:
    cleaned(built)
    forgotten = remove_workspace(built.request.recipe)
    assert forgotten.size > 0
    assert not (built.folder / ".epbuild").exists()
    assert Roots(built.cache).list_workspaces() == ([], [])
    assert built.build().restored == len(COMPILES) + 2
    assert built.compiled == []


def test_dry_run_keeps_the_workspace(built: Workshop) -> None:
    assert remove_workspace(built.request.recipe, dry_run=True).size > 0
    assert (built.folder / ".epbuild" / "state.sqlite").is_file()


def test_workspace_in_use_by_a_build_is_not_removed(built: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    built.write_recipe(("quality: 3", "quality: 1"))
    refused: list[str] = []

    def worker(*arguments: Any, **options: Any) -> Ending:
        with pytest.raises(StoreError) as failure:
            remove_workspace(built.request.recipe)
        refused.append(failure.value.problems[0].code)
        return built.worker(*arguments, **options)

    built.run_worker = worker
    assert built.build().exit_code == 0
    assert refused == ["EPB509"]
    check_idle(built.request.recipe)

"""Workspace state: it persists, recovers from damage, stays out of the user's way, and is cleaned up."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from epbuild.cache.digests import Digests, StatKey
from epbuild.cache.leases import lease
from epbuild.cache.state import Configuration, Measurement, OutputRecord, StepRecord
from epbuild.cache.workspace import Workspace
from epbuild.core.errors import StoreError
from tests.core.fake_windows import hold_open_files

STEP = StepRecord("compile:g/t/m", "ab" * 32, {"ep": "QNN", "members": ["m"]}, {"files": {"größe": 1}}, 1_700_000_000.25)
KEY = StatKey(size=1 << 40, mtime_ns=1_700_000_000_123_456_789, ctime_ns=5, inode=(1 << 127) + 1)


MAIN = Configuration.of(Path("epbuild.yaml"), (), {})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this user's store, which has the key that marks a workspace as the user's own."""
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".epbuild"


@pytest.mark.skipif(os.name == "nt", reason="SQLite takes longer paths on Windows")
@pytest.mark.parametrize("create", [True, False])
def test_workspace_in_a_too_deep_folder_is_refused_with_a_hint(tmp_path: Path, create: bool) -> None:
    room = 504 - len(str(tmp_path / "/.epbuild/state.sqlite".lstrip("/")))
    deepest = tmp_path / "/".join(["d" * 9] * (room // 10))
    deepest.mkdir(parents=True)
    with Workspace.open(deepest / ".epbuild", create=create) as workspace:
        assert workspace.outputs() == []
    too_deep = deepest / ("d" * 20)
    with pytest.raises(
        StoreError,
        match=rf"^{too_deep}: .* Move the recipe to a folder with a shorter path: SQLite supports at most 504 bytes\. "
        r"\[EPB516\]",
    ):
        Workspace.open(too_deep / ".epbuild", create=create)


def test_workspace_created_concurrently_by_another_build_is_accepted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit the tables and the mark of the other build between the two statements that read them."""
    really_connect = sqlite3.connect
    begun: list[Workspace] = []

    class Interrupted(sqlite3.Connection):
        def execute(self, *arguments: Any) -> Any:
            found = super().execute(*arguments)
            if begun:
                return found
            row = found.fetchone()
            found.close()
            monkeypatch.setattr(sqlite3, "connect", really_connect)
            begun.append(Workspace.open(directory))
            begun[0].record_fact("name", "value")
            return SimpleNamespace(fetchone=lambda: row)

    monkeypatch.setattr(sqlite3, "connect", partial(really_connect, factory=Interrupted))
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") == "value"
        assert list(workspace.problems()) == []
    begun[0].close()


def test_state_is_remembered_by_the_next_run(directory: Path) -> None:
    outside = str(directory.parent.parent / "models" / "m.onnx")
    inside = str(directory.parent / "models" / "m.onnx")
    with Workspace.open(directory) as first:
        first.memory(MAIN).record_steps([STEP])
        first.record_measurement("step", Measurement(2.5, 123))
        first.record_measurement("other", Measurement(1.0))
        first.record_fact("recipe", "valid")
        first.files.put_many({inside: (KEY, "d1"), outside: (KEY, "d2")})
    with Workspace.open(directory, create=False) as second:
        assert second.memory(MAIN).step(STEP.step) == STEP
        assert second.measurement("step") == Measurement(2.5, 123)
        assert second.measurement("other") == Measurement(1.0)
        assert second.fact("recipe") == "valid"
        assert second.files.get_many([inside]) == {inside: (KEY, "d1")}
        assert second.files.get_many([outside]) == {outside: (KEY, "d2")}


def test_unrecorded_state_is_unknown(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        assert workspace.memory(MAIN).step("compile:x") is None
        assert workspace.measurement("compile:x") is None
        assert workspace.fact("x") is None
        assert workspace.files.get_many(["/x"]) == {}


def test_workspace_is_empty_until_any_configuration_was_built(directory: Path) -> None:
    other = Configuration.of(Path("other.yaml"), (), {})
    with Workspace.open(directory) as workspace, Workspace.open(directory) as beside:
        workspace.files.put_many({"/m.onnx": (KEY, "digest")})
        assert workspace.memory(MAIN).is_empty
        beside.memory(other).record_steps([STEP])
        assert not workspace.memory(MAIN).is_empty


def test_latest_fact_wins(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        for text in ("old", "new"):
            workspace.record_fact("name", text)
        assert workspace.fact("name") == "new"


def test_moved_checkout_keeps_its_digests(directory: Path, tmp_path: Path) -> None:
    with Workspace.open(directory) as workspace:
        workspace.files.put_many({str(directory.parent / "m.onnx"): (KEY, "digest")})
    moved = directory.parent.rename(tmp_path / "moved")
    with Workspace.open(moved / ".epbuild") as workspace:
        assert workspace.files.get_many([str(moved / "m.onnx")]) == {str(moved / "m.onnx"): (KEY, "digest")}


def test_digests_of_real_files_persist_in_the_workspace(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace.open(directory) as workspace:
        model = directory.parent / "m.onnx"
        model.write_bytes(b"graph")
        long_ago = 1_000_000_000
        monkeypatch.setattr("time.time_ns", lambda: long_ago)
        digest = Digests(workspace.files).of(model)
        assert workspace.files.get_many([str(model)]) == {str(model): (StatKey.of(model), digest)}


def test_steps_are_recorded_all_or_none(directory: Path) -> None:
    broken = StepRecord("share:g/t", "cd" * 32, {}, {"ratio": float("nan")}, 0.0)
    with Workspace.open(directory) as workspace:
        with pytest.raises(ValueError, match="JSON"):
            workspace.memory(MAIN).record_steps([STEP, broken])
        assert workspace.memory(MAIN).step(STEP.step) is None


def test_inspecting_an_unbuilt_project_writes_nothing(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / ".epbuild", create=False) as workspace:
        workspace.record_fact("name", "text")
        assert workspace.fact("name") == "text"
        assert workspace.logs == tmp_path / ".epbuild" / "logs"
        workspace.sweep()
    assert list(tmp_path.iterdir()) == []


def test_workspace_folders_are_created_on_demand(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        assert not (directory / "logs").exists()
        assert workspace.logs.is_dir()
        assert workspace.tmp.is_dir()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_ignores_a_workspace(tmp_path: Path) -> None:
    project = tmp_path / "project"
    subprocess.run(["git", "init", "-q", project], check=True)
    with Workspace.open(project / ".epbuild") as workspace:
        workspace.record_fact("name", "text")
    status = subprocess.run(
        ["git", "-C", project, "status", "--porcelain", "--untracked-files=all"], check=True, capture_output=True
    )
    assert status.stdout == b""
    (project / ".epbuild" / ".gitignore").write_bytes(b"mine\n")
    Workspace.open(project / ".epbuild").close()
    assert (project / ".epbuild" / ".gitignore").read_bytes() == b"mine\n"


@pytest.mark.parametrize("damage", [b"this is no database, but it is as long as a header would be" * 100, b"\0" * 4096])
def test_garbage_state_file_is_set_aside_and_the_build_continues(directory: Path, damage: bytes) -> None:
    Workspace.open(directory).close()
    (directory / "state.sqlite").write_bytes(damage)
    with Workspace.open(directory) as workspace:
        workspace.record_fact("name", "text")
        assert workspace.fact("name") == "text"
    assert (directory / "state.sqlite.damaged").read_bytes() == damage
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") == "text"


def damage_deeply(directory: Path) -> None:
    """Damage the file but keep its header and list of tables, so that it still opens."""
    with Workspace.open(directory) as workspace:
        workspace.files.put_many({f"/models/{n}": (KEY, "0" * 64) for n in range(2000)})
    state = directory / "state.sqlite"
    data = state.read_bytes()
    assert len(data) > 40 * 4096
    state.write_bytes(data[: 2 * 4096] + b"\xa5" * (len(data) - 2 * 4096))


def test_deep_damage_is_repaired_when_it_is_detected(directory: Path) -> None:
    damage_deeply(directory)
    with Workspace.open(directory) as workspace:
        assert not (directory / "state.sqlite.damaged").exists()
        assert workspace.files.get_many(["/models/1000"]) == {}
        assert (directory / "state.sqlite.damaged").exists()
        workspace.record_fact("name", "text")
        assert workspace.fact("name") == "text"


def alter(directory: Path, statement: str) -> None:
    connection = sqlite3.connect(directory / "state.sqlite")
    connection.executescript(statement)
    connection.commit()
    connection.close()


USES: dict[str, Callable[[Workspace], object]] = {
    "files": lambda workspace: workspace.files.get_many(["/models/1"]).get("/models/1"),
    "steps": lambda workspace: workspace.memory(MAIN).step(STEP.step),
    "measurements": lambda workspace: workspace.measurement(STEP.step),
    "facts": lambda workspace: workspace.fact("name"),
}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE files SET digest = CAST(x'ff3031' AS TEXT)",
        "UPDATE files SET inode = 'seven'",
        "UPDATE files SET digest = replace(digest, '0', '1')",
        "UPDATE steps SET key_document = '{'",
        "UPDATE steps SET result = CAST(x'7bff7d' AS TEXT)",
        "UPDATE steps SET result = '[]'",
        "UPDATE steps SET action_key = CAST(x'c3' AS TEXT)",
        "UPDATE steps SET finished = 'long ago'",
        "UPDATE measurements SET seconds = 'a while'",
        "UPDATE facts SET text = CAST(x'fe' AS TEXT)",
    ],
)
def test_damaged_row_is_handled_like_a_damaged_file(directory: Path, change: str) -> None:
    with Workspace.open(directory) as workspace:
        workspace.files.put_many({"/models/1": (KEY, "0" * 64)})
        workspace.memory(MAIN).record_steps([STEP])
        workspace.record_measurement(STEP.step, Measurement(1.5, 10))
        workspace.record_fact("name", "text")
    alter(directory, change)
    with Workspace.open(directory) as workspace:
        assert USES[change.split()[1]](workspace) is None
        assert (directory / "state.sqlite.damaged").exists()
        workspace.memory(MAIN).record_steps([STEP])
        assert workspace.memory(MAIN).step(STEP.step) == STEP


def test_path_that_leaves_its_folder_counts_as_damage(directory: Path) -> None:
    for place, name in (("../out", "m.onnx"), ("dist/g", "../../m.onnx"), ("/etc", "m.onnx"), ("dist/a/../../..", "m.onnx")):
        files = {name: {"digest": "ab" * 32, "size": 7}}
        with Workspace.open(directory) as workspace:
            workspace.memory(MAIN).record_output(OutputRecord(place, STEP.step, STEP.action_key, (), files), STEP)
        with Workspace.open(directory) as workspace:
            assert workspace.outputs() == []
        (directory / "state.sqlite.damaged").unlink()


def other_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(tmp_path / "other"))


def test_workspace_of_another_user_is_set_aside_with_a_warning(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workspace.open(directory) as workspace:
        workspace.record_fact("name", "text")
    other_store(monkeypatch, tmp_path)
    for _ in range(2):  # before this user has a key, and with one
        before = contents(directory)
        with Workspace.open(directory, create=False) as workspace:
            assert workspace.fact("name") is None
            assert not workspace.is_on_disk
            assert [problem.code for problem in workspace.problems()] == ["EPB515"]
        assert contents(directory) == before
        Workspace.open(tmp_path / "mine" / ".epbuild").close()
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") is None
        assert [problem.code for problem in workspace.problems()] == ["EPB515"]
        workspace.record_fact("name", "mine")
    with Workspace.open(directory, create=False) as workspace:
        assert workspace.fact("name") == "mine"
        assert list(workspace.problems()) == []
    assert (directory / "state.sqlite.damaged").exists()


def test_rows_of_another_user_count_as_damage(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other" / ".epbuild"
    with Workspace.open(directory) as workspace:
        workspace.record_fact("name", "mine")
    with monkeypatch.context() as patch:
        other_store(patch, tmp_path)
        with Workspace.open(other) as workspace:
            workspace.record_fact("name", "theirs")
    alter(directory, f"ATTACH '{other / 'state.sqlite'}' AS other; INSERT OR REPLACE INTO facts SELECT * FROM other.facts")
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") is None


def test_state_of_an_older_epbuild_is_set_aside(directory: Path) -> None:
    directory.mkdir(parents=True)
    alter(directory, "CREATE TABLE facts (name TEXT PRIMARY KEY, text TEXT NOT NULL); PRAGMA user_version=2")
    with Workspace.open(directory) as workspace:
        assert [problem.code for problem in workspace.problems()] == ["EPB515"]
        assert workspace.fact("name") is None


def test_damaged_key_discards_the_state(directory: Path, cache: Path) -> None:
    Workspace.open(directory).close()
    (cache / "workspace.key").write_bytes(b"short")
    with Workspace.open(directory) as workspace:
        assert [problem.code for problem in workspace.problems()] == ["EPB515"]
    assert len((cache / "workspace.key").read_bytes()) == 32


@pytest.mark.parametrize("change", ["DROP TABLE facts", "ALTER TABLE facts RENAME COLUMN text TO words", "PRAGMA user_version=0"])
def test_state_file_with_unexpected_tables_is_set_aside(directory: Path, change: str) -> None:
    Workspace.open(directory).close()
    alter(directory, change)
    with Workspace.open(directory) as workspace:
        workspace.record_fact("name", "text")
        assert workspace.fact("name") == "text"
    assert (directory / "state.sqlite.damaged").exists()


def test_older_schema_without_a_migration_is_set_aside(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        workspace.record_fact("name", "text")
    connection = sqlite3.connect(directory / "state.sqlite")
    connection.execute("PRAGMA user_version=-1")
    connection.close()
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") is None
        workspace.record_fact("name", "anew")
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") == "anew"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no file that another build has open")
def test_second_build_that_detects_damage_keeps_new_records(directory: Path) -> None:
    damage_deeply(directory)
    with Workspace.open(directory) as first, Workspace.open(directory) as second:
        first.files.get_many(["/models/1000"])
        first.record_fact("name", "learned")
        second.files.get_many(["/models/1000"])
        assert second.fact("name") == "learned"
        assert first.fact("name") == "learned"


@pytest.mark.skipif(sys.platform == "win32", reason="imitates Windows")
def test_damage_on_windows_is_repaired_after_the_last_build_has_closed_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_deeply(directory)
    hold_open_files(monkeypatch)
    with Workspace.open(directory) as first, Workspace.open(directory) as second:
        assert first.files.get_many(["/models/1000"]) == {}
        first.record_fact("name", "in memory")
        assert first.fact("name") == "in memory"
        [problem] = first.problems()
        assert problem.code == "EPB507"
        assert "state.sqlite is ignored because it is damaged and another program uses it" in problem.message
        second.files.get_many(["/models/1000"])
        second.record_fact("name", "on disk")
        assert list(second.problems()) == []
    with Workspace.open(directory) as workspace:
        assert workspace.fact("name") == "on disk"
    assert (directory / "state.sqlite.damaged").exists()


def test_state_of_a_newer_epbuild_is_left_alone_with_advice(directory: Path) -> None:
    Workspace.open(directory).close()
    connection = sqlite3.connect(directory / "state.sqlite")
    connection.execute("PRAGMA user_version=999")
    connection.close()
    for create in (True, False):
        with pytest.raises(StoreError, match="newer epbuild") as failure:
            Workspace.open(directory, create=create)
        assert failure.value.problems[0].code == "EPB506"
        assert failure.value.problems[0].hint is not None
    assert not (directory / "state.sqlite.damaged").exists()


def test_uncreatable_workspace_is_an_error_only_when_building(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        Workspace.open(tmp_path / "file" / ".epbuild")
    with Workspace.open(tmp_path / "file" / ".epbuild", create=False) as workspace:
        assert workspace.fact("name") is None


@pytest.fixture
def another_user() -> Iterator[Callable[[], None]]:
    """Yield a function that drops root's rights for the rest of the test. Other users keep their rights."""
    if os.name == "nt":
        pytest.skip("needs POSIX permissions")
    privileged = os.geteuid() == 0

    def become() -> None:
        if privileged:
            os.setresuid(65534, 65534, 0)

    try:
        yield become
    finally:
        if privileged:
            os.setresuid(0, 0, 0)


@pytest.fixture
def read_only_workspace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a workspace that only root can write to, of a store that all users can read."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("EPBUILD_CACHE_DIR", str(Path(name) / "cache"))
        directory = Path(name) / ".epbuild"
        with Workspace.open(directory) as workspace:
            workspace.record_fact("name", "text")
        (Path(name) / "cache" / "workspace.key").chmod(0o644)
        for path, mode in ((Path(name), 0o755), (directory, 0o555), (directory / "state.sqlite", 0o444)):
            path.chmod(mode)
        yield directory
        directory.chmod(0o755)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_read_only_workspace_can_be_read(read_only_workspace: Path, another_user: Callable[[], None]) -> None:
    before = contents(read_only_workspace)
    another_user()
    with Workspace.open(read_only_workspace, create=False) as workspace:
        assert workspace.fact("name") == "text"
        workspace.record_fact("name", "kept in memory")
        assert workspace.fact("name") == "kept in memory"
        assert not workspace.is_on_disk
        assert not workspace.is_unreadable
    assert contents(read_only_workspace) == before
    with pytest.raises(StoreError, match=r"state\.sqlite"):
        Workspace.open(read_only_workspace)


def test_read_only_workspace_shows_changes_of_a_running_build(
    read_only_workspace: Path, another_user: Callable[[], None]
) -> None:
    read_only_workspace.chmod(0o755)
    (read_only_workspace / "state.sqlite").chmod(0o644)
    with Workspace.open(read_only_workspace) as building:
        building.record_fact("name", "news")
        if os.geteuid() != 0:  # the owner of the files must lose write access
            for path in (*read_only_workspace.iterdir(), read_only_workspace):
                path.chmod(path.stat().st_mode & 0o555)
        another_user()
        with Workspace.open(read_only_workspace, create=False) as workspace:
            assert not workspace.is_on_disk
            assert workspace.fact("name") == "news"
            assert not workspace.is_unreadable


def test_unreadable_or_damaged_state_is_unknown_and_flagged(read_only_workspace: Path, another_user: Callable[[], None]) -> None:
    state_file = read_only_workspace / "state.sqlite"
    damaged = read_only_workspace.parent / "damaged" / ".epbuild"
    damaged.mkdir(parents=True)
    (damaged / "state.sqlite").write_bytes(b"no database" * 1000)
    (damaged / "state.sqlite").chmod(0o444)
    damaged.chmod(0o555)
    state_file.chmod(0o000)
    another_user()
    for directory in (read_only_workspace, damaged):
        with Workspace.open(directory, create=False) as workspace:
            assert workspace.is_unreadable
            assert workspace.fact("name") is None
            workspace.record_fact("name", "text")
            assert workspace.fact("name") == "text"


COUNT_UP = """
import sys
from pathlib import Path
from epbuild.cache.state import Configuration, StepRecord
from epbuild.cache.workspace import Workspace
MAIN = Configuration.of(Path("epbuild.yaml"), (), {})
with Workspace.open(Path(sys.argv[1])) as workspace:
    for n in range(40):
        workspace.memory(MAIN).record_steps([StepRecord(f"{sys.argv[2]}-{n}-{part}", "k", {}, {}, 0.0) for part in "ab"])
        for other in range(4):
            # In the order of the writing: who sees the first of two must find the second.
            seen = workspace.memory(MAIN).step(f"{other}-{n}-a") is not None
            assert not seen or workspace.memory(MAIN).step(f"{other}-{n}-b") is not None, "half a transaction was seen"
"""


def test_concurrent_builds_in_a_new_workspace_lose_no_records(directory: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", COUNT_UP, directory, str(n)]) for n in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    with Workspace.open(directory) as workspace:
        names = [f"{process}-{n}-{part}" for process in range(4) for n in range(40) for part in "ab"]
        assert [name for name in names if workspace.memory(MAIN).step(name) is None] == []


def test_threads_of_one_build_share_a_workspace(directory: Path) -> None:
    with Workspace.open(directory) as workspace:

        def record(name: str) -> None:
            for n in range(25):
                workspace.record_fact(f"{name}-{n}", name)

        threads = [threading.Thread(target=record, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [workspace.fact(f"{name}-{n}") for name in range(4) for n in range(25)] == [
            str(name) for name in range(4) for _ in range(25)
        ]


def test_steps_and_facts_can_be_listed_and_deleted(directory: Path) -> None:
    steps = [replace(STEP, step=name) for name in ("emit:a", "emit:b", "share:a")]
    with Workspace.open(directory) as workspace:
        workspace.memory(MAIN).record_steps(steps)
        for name in ("remote b", "remote_c", "remote a", "other"):
            workspace.record_fact(name, name.upper())
        assert workspace.steps() == [(MAIN, step) for step in steps]
        assert workspace.facts("remote ") == {"remote a": "REMOTE A", "remote b": "REMOTE B"}
        workspace.memory(MAIN).forget_steps(["emit:a", "share:a", "never known"])
        workspace.forget_facts(["remote a"])
        assert workspace.steps() == [(MAIN, steps[1])]
        assert workspace.facts("remote ") == {"remote b": "REMOTE B"}


def test_a_workspace_is_busy_while_a_build_stages_or_holds_a_lease(directory: Path) -> None:
    with Workspace.open(directory) as workspace, Workspace.open(directory) as onlooker:
        assert not onlooker.is_busy()
        with workspace.staging("action"):
            assert onlooker.is_busy()
        with lease(directory, "emit"):
            assert onlooker.is_busy()
        assert not onlooker.is_busy()


def test_stand_in_is_distinguishable_from_a_workspace_on_disk(directory: Path) -> None:
    with Workspace.open(directory, create=False) as workspace:
        assert not workspace.is_on_disk
    with Workspace.open(directory) as workspace:
        assert workspace.is_on_disk


def test_staging_directory_starts_empty_and_is_removed_afterwards(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        with workspace.staging("compile:group/target") as first, workspace.staging("compile:group/target") as second:
            assert first != second
            assert list(first.iterdir()) == []
            (first / "out").mkdir()
            (first / "out" / "model.bin").write_bytes(b"data")
        assert list(workspace.tmp.iterdir()) == []


def test_staging_directory_is_removed_when_its_action_fails(directory: Path) -> None:
    with Workspace.open(directory) as workspace:
        with pytest.raises(RuntimeError), workspace.staging("action"):
            raise RuntimeError
        assert list(workspace.tmp.iterdir()) == []


STAGE = """
import sys, time
from pathlib import Path
from epbuild.cache.workspace import Workspace
with Workspace.open(Path(sys.argv[1])) as workspace, workspace.staging("action") as staging:
    (staging / "half.bin").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_only_staging_of_dead_builds_is_swept(directory: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STAGE, directory], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with Workspace.open(directory) as workspace, workspace.staging("mine") as mine, process.stdout as output:
        assert output.readline().split() == [b"ready"]
        workspace.sweep()
        assert len([path for path in workspace.tmp.iterdir() if path.is_dir()]) == 2
        process.kill()
        process.wait(5)
        workspace.sweep()
        assert [path for path in workspace.tmp.iterdir() if path.is_dir()] == [mine]

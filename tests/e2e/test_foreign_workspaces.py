"""Workspaces shipped by another user: never trusted, and never a reason to delete a file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.state import OutputRecord, list_all_outputs
from epbuild.cache.workspace import Workspace
from tests.support.projects import Project

WARNING = "EPB515"


@pytest.fixture
def shipped(quickstart: Project, tmp_path: Path, quickstart_store: Path) -> tuple[Project, Project]:
    """Build a project as a stranger. Return it, and a folder for a victim with a separate cache."""
    quickstart.build()
    victim = Project(tmp_path / "victim" / "checkout", tmp_path / "victims-cache", quickstart.environment)
    shutil.copytree(quickstart_store, victim.cache, ignore=shutil.ignore_patterns("workspace.key"))
    return quickstart, victim


def forge(stranger: Project, monkeypatch: pytest.MonkeyPatch, *changed: OutputRecord) -> None:
    """Record outputs as the stranger's own epbuild would."""
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(stranger.cache))
    with Workspace.open(stranger.folder / ".epbuild") as workspace:
        for output in changed:
            memory = workspace.memory(output.owners[0])
            step = memory.previous(outputs_of(workspace)[0].step)
            assert step is not None
            memory.record_output(output, step)
    monkeypatch.undo()


def outputs_of(workspace: Workspace) -> list[OutputRecord]:
    return list_all_outputs(workspace._database)


def ship(stranger: Project, victim: Project) -> None:
    """Copy all files, as `git clone` does with committed files."""
    shutil.copytree(stranger.folder, victim.folder, symlinks=True)


@pytest.fixture
def genuine(shipped: tuple[Project, Project], monkeypatch: pytest.MonkeyPatch) -> list[OutputRecord]:
    monkeypatch.setenv("EPBUILD_CACHE_DIR", str(shipped[0].cache))
    with Workspace.open(shipped[0].folder / ".epbuild") as workspace:
        found = outputs_of(workspace)
    monkeypatch.undo()
    return found


def test_shipped_state_deletes_nothing_outside_the_folder(
    shipped: tuple[Project, Project], genuine: list[OutputRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, victim = shipped
    notes = victim.folder.parent / "out" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine", encoding="utf-8")
    digest = hashlib.sha256(b"mine").hexdigest()
    forge(stranger, monkeypatch, replace(genuine[0], place="../out", files={"notes.txt": {"digest": digest, "size": 4}}))
    ship(stranger, victim)
    done = victim.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert notes.read_text(encoding="utf-8") == "mine"
    assert done.stderr.count(WARNING) == 1
    assert WARNING not in victim.epbuild("run").stderr, "it is told once"


def test_a_forged_output_is_not_trusted(
    shipped: tuple[Project, Project], genuine: list[OutputRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, victim = shipped
    before = stranger.files()
    forged = []
    for output in genuine:
        root = stranger.folder / output.place
        manifest = json.loads((root / "manifest.json").read_bytes())
        files = {name: dict(file) for name, file in output.files.items()}
        for entry in manifest["files"]:
            path = root / entry["path"]
            path.write_bytes(path.read_bytes() + b"evil")
            entry["sha256"], entry["size"] = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
            files[entry["path"]] = {"digest": entry["sha256"], "size": entry["size"]}
        data = json.dumps(manifest).encode()
        (root / "manifest.json").write_bytes(data)
        files["manifest.json"] = {"digest": hashlib.sha256(data).hexdigest(), "size": len(data)}
        forged.append(replace(output, files=files))
    forge(stranger, monkeypatch, *forged)
    ship(stranger, victim)
    assert victim.epbuild("run", "--check").returncode == 1
    done = victim.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert "Nothing to do" not in done.stdout + done.stderr
    assert victim.files() == before


def test_a_users_file_in_a_shipped_output_is_kept(shipped: tuple[Project, Project], genuine: list[OutputRecord]) -> None:
    stranger, victim = shipped
    root = stranger.folder / genuine[0].place
    manifest = json.loads((root / "manifest.json").read_bytes())
    manifest["files"].append({**manifest["files"][0], "path": "notes.txt", "sha256": None})
    manifest["provenance"] = "more.txt"
    (root / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    ship(stranger, victim)
    for name in ("notes.txt", "more.txt"):
        (victim.folder / genuine[0].place / name).write_text("mine", encoding="utf-8")
    done = victim.epbuild("run")
    assert done.returncode == 0, done.stderr
    kept = [path for path in (victim.folder / genuine[0].place).iterdir() if path.read_bytes() == b"mine"]
    assert len(kept) == 2, done.stderr


def test_a_moved_or_copied_workspace_is_still_trusted(quickstart: Project, tmp_path: Path) -> None:
    quickstart.build()
    copy = Project(tmp_path / "copy", quickstart.cache, quickstart.environment)
    shutil.copytree(quickstart.folder, copy.folder)
    assert "nothing to do" in (done := copy.epbuild("run")).stdout.lower() + done.stderr.lower()
    assert WARNING not in done.stderr


def test_a_lost_cache_only_causes_more_work(quickstart: Project, quickstart_store: Path) -> None:
    quickstart.build()
    before = quickstart.files()
    shutil.rmtree(quickstart.cache)
    shutil.copytree(quickstart_store, quickstart.cache)
    (quickstart.cache / "workspace.key").unlink(missing_ok=True)
    done = quickstart.epbuild("run")
    assert (done.returncode, done.stderr.count(WARNING)) == (0, 1)
    assert quickstart.files() == before


def test_planning_in_a_foreign_workspace_changes_no_file(shipped: tuple[Project, Project]) -> None:
    stranger, victim = shipped
    ship(stranger, victim)
    before = victim.files(".epbuild")
    done = victim.epbuild("plan")
    assert WARNING in done.stderr + done.stdout
    assert "current" not in done.stdout
    assert victim.files(".epbuild") == before


def test_a_database_log_shipped_into_a_trusted_workspace_is_ignored(quickstart: Project) -> None:
    """Ship an SQLite log, which would change the state of a workspace that is known."""
    quickstart.build()
    notes = quickstart.folder.parent / "out" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine", encoding="utf-8")
    state = quickstart.folder / ".epbuild" / "state.sqlite"
    copy = state.with_name("copy.sqlite")
    shutil.copyfile(state, copy)
    connection = sqlite3.connect(copy, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint=0")
    [row] = connection.execute("SELECT * FROM outputs LIMIT 1").fetchall()
    files = json.dumps({"notes.txt": {"digest": hashlib.sha256(b"mine").hexdigest(), "size": 4}}, separators=(",", ":"))
    values = ("../out", row[1], row[2], row[3], files, row[5])
    checksum = zlib.crc32(f"[{', '.join(map(json.dumps, values))}]".encode())  # as written by epbuild versions without a key
    connection.execute("INSERT INTO outputs VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, checksum))
    log = copy.with_name("copy.sqlite-wal").read_bytes()
    connection.close()
    copy.unlink()
    state.with_name("state.sqlite-wal").write_bytes(log)
    shutil.rmtree(quickstart.cache / "looks")
    (quickstart.folder / "dist").rename(quickstart.folder / "moved")
    done = quickstart.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert notes.read_text(encoding="utf-8") == "mine"
    assert state.with_name("state.sqlite.damaged").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
@pytest.mark.parametrize("name", ["", "tmp", "logs", "leases", "reports"])
def test_a_workspace_folder_that_is_a_link_is_refused(quickstart: Project, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "tmp" / "precious").mkdir(parents=True)
    (elsewhere / "precious").mkdir()
    link = quickstart.folder / ".epbuild" / name
    link.parent.mkdir(exist_ok=True)
    if name == "":
        link = quickstart.folder / ".epbuild"
    link.symlink_to(elsewhere)
    done = quickstart.epbuild("run")
    assert done.returncode == 3, done.stderr
    assert "EPB503" in done.stderr
    assert "is a link" in done.stderr
    assert sorted(path.relative_to(elsewhere).as_posix() for path in elsewhere.rglob("*")) == ["precious", "tmp", "tmp/precious"]

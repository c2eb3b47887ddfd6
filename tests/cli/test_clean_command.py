"""`epbuild clean`: removed files, kept files with the reason, and the way to restore them."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from epbuild.cache.leases import lease
from epbuild.cache.state import Configuration, OutputRecord, StepRecord
from epbuild.cache.workspace import Workspace
from tests.support.commands import RECIPE, environment, epbuild, write_model

pytestmark = pytest.mark.slow  # each test starts the real command

EMIT = "emit:main/phone/directory"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that looks to `clean` as if the recipe was built there."""
    monkeypatch.setenv("EPBUILD_CACHE_DIR", environment(tmp_path)["EPBUILD_CACHE_DIR"])
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    folder = tmp_path / "dist" / "phone"
    folder.mkdir(parents=True)
    (folder / "relu_ctx.onnx").write_bytes(b"model")
    listed = {"path": "relu_ctx.onnx", "role": "model", "size": 5, "sha256": hashlib.sha256(b"model").hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": [listed]}), encoding="utf-8")
    files = {
        path.name: {"digest": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size}
        for path in folder.iterdir()
    }
    with Workspace.open(tmp_path / ".epbuild") as workspace:
        output = OutputRecord("dist/phone", EMIT, "ab" * 32, (), files)
        record = StepRecord(EMIT, "ab" * 32, {}, {"place": "dist/phone", "results": []}, time.time())
        workspace.memory(Configuration.of(tmp_path / "epbuild.yaml", (), {})).record_output(output, record)
    return tmp_path


def test_clean_removes_outputs_and_says_how_to_restore_them(project: Path) -> None:
    size = sum(path.stat().st_size for path in (project / "dist" / "phone").iterdir())
    done = epbuild(project, "clean")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"removed  dist/phone  2 files, {size} bytes\n"
        f"Removed 2 files, {size} bytes. Run `epbuild run epbuild.yaml` to restore outputs from the store.\n"
    )
    assert not (project / "dist").exists()
    assert (project / ".epbuild" / "state.sqlite").exists()
    assert epbuild(project, "clean").stdout == "No outputs to remove.\n"


def test_kept_files_are_listed_with_the_reason(project: Path) -> None:
    (project / "dist" / "phone" / "notes.txt").write_bytes(b"mine")
    (project / "dist" / "phone" / "relu_ctx.onnx").write_bytes(b"edited")
    kept = [
        "  dist/phone/notes.txt: epbuild did not write it",
        "  dist/phone/relu_ctx.onnx: it was changed after epbuild wrote it; use --force to remove it",
    ]
    told = epbuild(project, "clean", "--dry-run").stdout.splitlines()
    assert told[0].startswith("would remove  dist/phone  1 file, ")
    assert told[1:3] == [f"kept        {line}" for line in kept]
    done = epbuild(project, "clean").stdout.splitlines()
    assert done[1:3] == [f"kept   {line}" for line in kept]
    assert sorted(path.name for path in (project / "dist" / "phone").iterdir()) == ["notes.txt", "relu_ctx.onnx"]
    assert epbuild(project, "clean", "--force").stdout.startswith("removed  dist/phone  1 file, 6 bytes\n")
    assert [path.name for path in (project / "dist" / "phone").iterdir()] == ["notes.txt"]


def test_the_list_of_kept_files_is_shortened(project: Path) -> None:
    for number in range(20):
        (project / "dist" / "phone" / f"{number:02}.txt").write_bytes(b"mine")
    lines = epbuild(project, "clean").stdout.splitlines()
    assert len(lines) == 1 + 6 + 1 + 1
    assert lines[-2] == "kept     and 14 more"


def test_clean_accepts_step_names_and_refuses_unknown_names(project: Path) -> None:
    assert epbuild(project, "clean", "epbuild.yaml", "compile:*").stdout == "No outputs to remove.\n"
    done = epbuild(project, "clean", "epbuild.yaml", "emit:none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[EPB240]" in done.stderr
    assert epbuild(project, "clean", "epbuild.yaml", EMIT).returncode == 0
    assert not (project / "dist").exists()


def test_clean_all_removes_the_workspace_unless_a_build_runs(project: Path) -> None:
    with lease(project / ".epbuild", "emit.x"):
        done = epbuild(project, "clean", "--all")
        assert (done.returncode, done.stdout) == (3, "")
        assert "[EPB509]" in done.stderr
        assert (project / "dist").exists()
    assert "would remove  .epbuild  " in epbuild(project, "clean", "--all", "-n").stdout
    done = epbuild(project, "clean", "--all")
    assert done.returncode == 0
    assert "removed  .epbuild  " in done.stdout
    assert sorted(path.name for path in project.iterdir()) == [".cache", "epbuild.yaml", "relu.onnx"]
    done = epbuild(project, "clean", "epbuild.yaml", EMIT, "--all")
    assert (done.returncode, done.stdout) == (2, "")

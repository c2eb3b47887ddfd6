"""Files that appear or disappear where a pattern may match: no command answers from the old snapshot."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from epbuild.cli.app import execute
from epbuild.session.planning import read_plan
from epbuild.survey.snapshot import try_fast_path
from tests.support.fake_builds import Workshop, source_model

RECIPE = """\
epbuild: 1
name: small
models: models/*.onnx
targets: {npu: {ep: qnn}}
groups: {all: {models: ["*"], expect: {fallback_nodes: any}}}
"""
SETTLED_SECONDS = 0.15  # a snapshot trusts no stat of a younger folder


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.serve_commands(monkeypatch)
    (found.folder / "fingerprint.json").write_text("{}", encoding="utf-8")
    (found.folder / "models").mkdir()
    for number, name in enumerate(("det", "cls")):
        (found.folder / "models" / f"{name}.onnx").write_bytes(source_model(float(number)))
    (found.folder / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    return found


def fast() -> str | None:
    """Return what a run with nothing to do prints without reading the recipe; None if it has to."""
    return try_fast_path(["run", "--check"], lambda: 0.0)


def settle() -> None:
    """Run until the fast path answers."""
    time.sleep(SETTLED_SECONDS)
    assert execute(["run"]) == 0
    assert fast() is not None


def steps(capsys: pytest.CaptureFixture[str], kind: str) -> dict[str, str]:
    """Return the states of the plan's steps of one kind."""
    capsys.readouterr()
    assert execute(["plan", "--json"]) == 0
    return {step["id"]: step["state"] for step in json.loads(capsys.readouterr().out)["steps"] if step["kind"] == kind}


def test_a_new_model_is_built_and_a_deleted_model_is_cleaned(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    new, output = workshop.folder / "models" / "seg.onnx", workshop.folder / "dist/small/all/npu/seg_ctx.onnx"
    settle()
    for number in range(2):
        new.write_bytes(source_model(7.0 + number))
        assert fast() is None
        assert steps(capsys, "compile")["compile:all/npu/seg"] in ("new", "out of date")
        assert execute(["validate"]) == 0
        assert "3 models" in capsys.readouterr().out
        settle()
        assert output.is_file()
        new.unlink()
        assert fast() is None
        assert len(steps(capsys, "compile")) == 2
        settle()
        assert not output.exists()


def test_the_defaults_of_a_recipe_are_in_the_plan_with_and_without_a_snapshot(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults: dict[str, object] = {
        "name": None,
        "toolchains": {"qnn": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"]},
        "groups": [],
        "output": "dist/small/${group}/${target}",
    }
    for _ in range(2):
        capsys.readouterr()
        assert execute(["plan", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["defaults"] == defaults
        assert execute(["plan"]) == 0
        assert capsys.readouterr().out.startswith("defaults: toolchain qnn (onnxruntime==1.31.1, onnxruntime-qnn==2.7.0)\n")
        assert execute(["plan", "epbuild.yaml", "emit:*"]) == 0
        assert "defaults" not in capsys.readouterr().out
        settle()


def test_files_that_match_no_pattern_change_no_step(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    settle()
    before = steps(capsys, "emit")
    for name in ("det.onnx.data", ".hidden.onnx", "notes.md"):
        (workshop.folder / "models" / name).write_bytes(b"")
    assert steps(capsys, "emit") == before
    settle()
    assert sorted(workshop.compiled) == ["cls", "det"]


def test_models_beside_the_recipe_are_watched_too(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    (workshop.folder / "epbuild.yaml").write_text(RECIPE.replace("models/*.onnx", "'*.onnx'"), encoding="utf-8")
    assert execute(["run"]) == 0  # it creates `dist`, so that the time of the folder shows nothing
    settle()
    (workshop.folder / "seg.onnx").write_bytes(source_model(7.0))
    assert fast() is None
    assert len(steps(capsys, "compile")) == 4
    settle()


def test_deleting_the_last_model_is_an_error_until_one_exists(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    settle()
    models = workshop.folder / "models"
    models.rename(workshop.folder / "away")
    for command in ("plan", "validate", "run"):
        assert execute([command]) == 2
        assert "no file matches 'models/*.onnx'. Paths are relative to the recipe. [EPB271]" in capsys.readouterr().err
    (workshop.folder / "away").rename(models)
    assert set(steps(capsys, "emit").values()) == {"current"}


def test_a_new_input_file_is_noticed(workshop: Workshop) -> None:
    samples = workshop.folder / "samples"
    samples.mkdir()
    np.savez(samples / "1.npz", x=np.zeros(4, np.float32))
    text = RECIPE.replace("all: {", "all: {verify: {data: 'samples/*.npz', metrics: {max_abs: 1}}, ")
    (workshop.folder / "epbuild.yaml").write_text(text, encoding="utf-8")
    _, plan = read_plan(workshop.request)
    assert [folder.name for folder in plan.folders] == ["models", "samples"]

"""Models that a pattern matches, built by the real EP: added and removed files, and the fast path between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.projects import Project, compiled
from tests.support.quick_builds import write_model

pytestmark = pytest.mark.slow

RECIPE = """\
epbuild: 1
name: folder
models: models/*.onnx
targets: {npu: {ep: qnn, soc: SM8750}}
"""
SETTLED_SECONDS = 0.3  # a snapshot does not trust the stat of a younger folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "work", tmp_path / "cache")
    (found.folder / "models").mkdir(parents=True)
    found.recipe.write_text(RECIPE, encoding="utf-8")
    return found


def nothing_to_do(project: Project, steps: int) -> None:
    """Check that the next runs have nothing to do. The second one is answered without reading the recipe."""
    time.sleep(SETTLED_SECONDS)
    assert not compiled(project.build())
    done = project.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Nothing to do: {steps} steps are current")
    assert project.snapshots()


def test_added_and_removed_models_of_a_folder_are_built_and_cleaned(project: Project) -> None:
    models = project.folder / "models"
    assert project.epbuild("run").returncode == 2
    write_model(models / "left.onnx", 1)
    assert compiled(project.build()) == {"compile:left/npu/left"}
    nothing_to_do(project, 2)
    write_model(models / "right.onnx", 2)
    (models / "right.md").write_text("Notes.", encoding="utf-8")
    assert project.epbuild("run", "--check").returncode == 1
    assert compiled(project.build()) == {"compile:right/npu/right"}
    both = project.files()
    assert {name.split("/")[1] for name in both} == {"left", "right"}
    nothing_to_do(project, 4)
    (models / "right.onnx").unlink()
    assert not compiled(project.build())
    left = project.files()
    assert left == {name: data for name, data in both.items() if name.startswith("folder/left/")}
    nothing_to_do(project, 2)
    write_model(models / "right.onnx", 2)
    assert not compiled(project.build()), "its result is in the store"
    assert project.files() == both

"""Unusual file names and links: each builds or fails with a clear message, never with a traceback."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import Project, emitted
from tests.support.quick_builds import move_weights, write_model, write_project, write_standin_project
from tests.support.windows import wine_lacks

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="Windows and macOS have no such names, or no such links")

NO_TEXT = "no-\udcff-text"
ODD = "größe 日本 & 100% (1)"
NOT_COMPILED = ("left: {models: [left],", "left: {models: [left], compile: none,")
LONG = "/".join(["long-name-" * 10] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(ODD, id="odd"), pytest.param(LONG, id="long", marks=wine_lacks("long paths"))])
def test_a_folder_with_an_odd_or_long_path_is_built_and_cleaned(project: Project, tmp_path: Path, name: str) -> None:
    write_standin_project(project)
    deep = Project(shutil.copytree(project.folder, tmp_path / name, ignore=shutil.ignore_patterns("standin")), project.cache)
    (deep.folder / "left-1.onnx").rename(deep.folder / f"{ODD}.onnx")
    deep.edit("left-${vars.quality}.onnx", f"{ODD}.onnx")
    recipe = str(deep.recipe)
    assert project.epbuild("plan", recipe).returncode == 0
    assert len(emitted(project.build(recipe))) == 2
    assert {"left/left_ctx.onnx", "right/right_ctx.onnx"} < deep.files().keys()
    write_model(deep.folder / "right-1.onnx", seed=9)
    assert emitted(project.build(recipe)) == {"emit:right/npu/directory"}
    assert "Nothing to do" in project.epbuild("run", recipe).stdout
    assert project.epbuild("clean", recipe).returncode == 0
    assert deep.files() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NUL.onnx", "left.onnx."])
def test_a_model_whose_name_windows_lacks_is_built_or_refused(project: Project, name: str) -> None:
    write_standin_project(project)
    model = project.folder / "left-1.onnx"
    source = model.read_bytes()
    with contextlib.suppress(OSError):
        model.rename(project.folder / name)
    project.edit("left-${vars.quality}.onnx", name)
    project.edit(*NOT_COMPILED)
    done = project.epbuild("run")
    if sys.platform == "win32" and done.returncode != 0:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("error: ") == 1
        assert done.stderr.startswith("epbuild.yaml:")
        assert project.files() == {}
    else:
        assert done.returncode == 0, done.stderr
        assert project.files()["left/left.onnx"] == source


@pytest.mark.slow
def test_models_whose_names_differ_in_case_are_two_where_case_counts(project: Project) -> None:
    write_standin_project(project)
    (project.folder / "right-1.onnx").replace(project.folder / "LEFT-1.onnx")
    project.edit("right-${vars.quality}.onnx", "LEFT-1.onnx")
    for group in ("left", "right"):
        project.edit(f"{group}: {{models: [{group}],", f"{group}: {{models: [{group}], compile: none,")
    is_one = (project.folder / "left-1.onnx").samefile(project.folder / "LEFT-1.onnx")
    project.build()
    made = project.files()
    assert (made["left/left.onnx"] == made["right/right.onnx"]) is is_one


@pytest.mark.parametrize("name", ["aux.bin", "w ", "a:b"])
def test_external_data_with_a_name_that_windows_lacks_is_not_emitted(project: Project, name: str) -> None:
    write_standin_project(project)
    model = project.folder / "left-1.onnx"
    move_weights(model, name)
    if sys.platform != "win32":
        (project.folder / "weights.bin").rename(project.folder / name)
    project.edit(*NOT_COMPILED)
    done = project.epbuild("run")
    assert done.returncode == 2
    assert f"'{name}' is not a valid name on Windows. Save the model" in done.stderr
    assert done.stderr.startswith("epbuild.yaml:6:16: error: ")
    assert not (project.folder / "dist").exists()


def test_a_user_module_beside_the_recipe_replaces_none_of_python(project: Project) -> None:
    write_standin_project(project)
    for name in ("copy", "msgspec", "yaml"):
        (project.folder / f"{name}.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    project.cold = True
    done = project.epbuild("validate")
    assert (done.returncode, done.stderr) == (0, "")


@linux_only
def test_names_that_are_not_utf8_are_built_recorded_and_cleaned(tmp_path: Path) -> None:
    project = write_project(Project(tmp_path / NO_TEXT, tmp_path / "cache"))
    recipe = f"{NO_TEXT}.yaml"
    project.recipe.rename(project.folder / recipe)
    project.build(recipe)
    made = project.files()
    assert "left/left_ctx.onnx" in made
    for command in (["run", recipe, "--check"], ["plan", recipe], ["explain", recipe, "emit:*"], ["cache"], ["gc"]):
        done = project.epbuild(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert project.files() == made, "what a known workspace needs is no garbage"
    project.build(recipe, "--set", "vars.quality=2")
    project.build(recipe)
    assert project.files() == made
    assert project.epbuild("clean", recipe).returncode == 0
    assert project.files() == {}


@linux_only
def test_links_to_themselves_are_reported_with_their_location(project: Project) -> None:
    write_project(project)
    (project.folder / "dist").symlink_to("dist")
    done = project.epbuild("run")
    assert done.returncode == 3
    assert ": dist exists and is not a folder. Move it away" in done.stderr
    assert "EPB424" in done.stderr
    (project.folder / "loop.yaml").symlink_to("loop.yaml")
    project.edit("name: quick", "name: quick\nextends: loop.yaml")
    for recipe in ("epbuild.yaml", "loop.yaml"):
        done = project.epbuild("validate", recipe)
        assert done.returncode == 2
        assert "EPB100" in done.stderr


@linux_only
def test_a_deleted_working_folder_is_reported(project: Project) -> None:
    gone = project.folder / "gone"
    gone.mkdir()
    command, environment = project.command("run")
    script = "import os, sys; os.rmdir(os.getcwd()); os.execvp(sys.argv[1], sys.argv[1:])"
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=gone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr == "epbuild: error: the current folder no longer exists. Change to another folder.\n"

"""Pipes in place of files: reported in one message, without waiting for a writer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from tests.support import warm_start
from tests.support.projects import Project
from tests.support.quick_builds import write_model, write_project

pytestmark = [pytest.mark.gate, pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")]
SOON = 30
"""Seconds within which a command must answer."""


@pytest.fixture
def piped(project: Project) -> Project:
    write_project(project)
    os.mkfifo(project.folder / "pipe")
    return project


def refusal(project: Project, *arguments: str) -> str:
    done = warm_start.run(arguments, project.folder, project.command()[1], timeout=SOON)
    assert done.returncode in (2, 3), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done.stderr


def test_a_pipe_is_refused_as_a_recipe(piped: Project) -> None:
    for command in ("validate", "plan", "run", "lock", "clean"):
        told = refusal(piped, command, "pipe")
        assert "pipe: error: the recipe cannot be read: Not a regular file. " in told, command
        assert "[EPB100]" in told


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: quick", "name: quick\nextends: pipe", "epbuild.yaml:3:10: error: not a file: 'pipe'."),
        ("name: quick", "name: quick\ninclude: [pipe]", "epbuild.yaml:3:11: error: not a file: 'pipe'."),
        ("name: quick", "name: quick\ncatalogs: [pipe]", "error: the catalog file 'pipe' cannot be used: "),
        ("left: left.onnx", "left: pipe", "error: the model 'left' is not a file: pipe. "),
        ("backend_type: htp", "backend_type: htp\n      qnn_ir_backend_path: ./pipe", "does not exist: pipe. "),
        ("toolchain: qnn", "toolchain: qnn\n    library: pipe", "error: the plugin library does not exist: pipe."),
    ],
)
def test_a_pipe_named_in_a_recipe_is_reported_at_its_position(piped: Project, old: str, new: str, words: str) -> None:
    piped.edit(old, new)
    for command in ("validate", "run"):
        assert words in refusal(piped, command)


def test_a_pipe_is_refused_as_an_interpreter(piped: Project) -> None:
    piped.edit("packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", "interpreter: ./pipe")
    told = refusal(piped, "run")
    assert f"epbuild.yaml:5:3: error: the interpreter {piped.folder / 'pipe'} does not run: " in told


def test_a_pipe_is_refused_as_a_lock(piped: Project) -> None:
    (piped.folder / "pipe").rename(piped.folder / "epbuild.lock")
    for command in ("plan", "run", "lock", "run --locked"):
        told = refusal(piped, *command.split())
        assert "epbuild.lock:1:1: error: the lock cannot be read: Not a regular file." in told, command
        assert "[EPB242]" in told
        assert (piped.folder / "epbuild.lock").is_fifo()


OUTPUT = "dist/left/left_ctx.onnx"


@pytest.fixture
def built(piped: Project, quick_store: Path) -> Project:
    """Build a project from a store that has its compiled models, so that the snapshot answers for it."""
    shutil.copytree(quick_store, piped.cache)
    piped.build()
    assert "Nothing to do" in piped.epbuild("run").stdout
    return piped


def replaced(path: Path) -> Path:
    """Put a pipe in the place of a file."""
    path.unlink()
    os.mkfifo(path)
    return path


def answer(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = warm_start.run(arguments, project.folder, project.command()[1], timeout=SOON)
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done


@pytest.mark.parametrize("name", [OUTPUT, "dist/left/left_qnn.bin", "dist/left/manifest.json"])
def test_a_pipe_at_the_path_of_an_output_is_reported_and_kept(built: Project, name: str) -> None:
    pipe = replaced(built.folder / name)
    assert answer(built, "run", "--check").returncode == 1
    assert "restorable  emit:left/npu/directory" in answer(built, "plan").stdout
    done = answer(built, "run")
    assert done.returncode == 1
    assert f"{name.removeprefix('dist/')} already exists and was not created by epbuild. Move it away" in done.stderr
    assert "[EPB423]" in done.stderr
    assert pipe.is_fifo()
    shutil.rmtree(built.folder / "dist" / "right")
    assert "[EPB423]" in answer(built, "run", "-k").stderr
    assert (built.folder / "dist" / "right").is_dir()
    assert answer(built, "clean").returncode == 0
    assert pipe.is_fifo()


def test_a_pipe_at_the_path_of_an_output_folder_is_reported_and_kept(built: Project) -> None:
    shutil.rmtree(built.folder / "dist" / "left")
    os.mkfifo(built.folder / "dist" / "left")
    assert answer(built, "run", "--check").returncode == 1
    done = answer(built, "run")
    assert (done.returncode, "[EPB423]" in done.stderr) == (1, True), done.stderr
    assert (built.folder / "dist" / "left").is_fifo()


def test_a_pipe_at_the_path_of_an_archive_is_reported_and_kept(piped: Project) -> None:
    piped.edit('{layout: directory, path: "dist/${group}"}', '{layout: directory, archive: zip, path: "dist/${group}.zip"}')
    piped.build()
    pipe = replaced(piped.folder / "dist" / "left.zip")
    assert answer(piped, "run", "--check").returncode == 1
    done = answer(piped, "run")
    assert (done.returncode, "[EPB423]" in done.stderr) == (1, True), done.stderr
    assert pipe.is_fifo()
    assert answer(piped, "clean").returncode == 0
    assert pipe.is_fifo()


def test_a_pipe_at_the_path_of_a_model_is_reported(built: Project) -> None:
    replaced(built.folder / "left.onnx")
    for command in ("run", "run --check", "plan", "validate", "coverage", "explain 'emit:*'"):
        done = answer(built, *shlex.split(command))
        assert done.returncode == 2, (command, done.stdout, done.stderr)
        assert "error: the model 'left' is not a file: left.onnx. " in done.stderr


def test_a_pipe_at_the_path_of_external_data_is_reported(piped: Project) -> None:
    model = onnx.load(piped.folder / "left.onnx")
    onnx.save(model, piped.folder / "left.onnx", save_as_external_data=True, location="left.data", size_threshold=0)
    piped.build()
    replaced(piped.folder / "left.data")
    for command in ("run", "run --check", "plan", "validate"):
        done = answer(piped, *command.split())
        assert done.returncode == 2, (command, done.stdout)
        assert "left.data" in done.stderr
        assert "[EPB203]" in done.stderr


def test_no_command_waits_for_a_pipe_at_an_output_path(built: Project) -> None:
    replaced(built.folder / OUTPUT)
    for arguments in (
        "verify pipe",
        "verify dist/left",
        f"verify {OUTPUT}",
        "inspect pipe",
        "inspect dist/left",
        f"inspect {OUTPUT}",
        "diff pipe dist/right",
        "diff dist/left dist/right",
        f"relink {OUTPUT} --embed",
        f"merge {OUTPUT} dist/right/right_ctx.onnx -o merged.onnx",
        "merge pipe right.onnx -o merged.onnx",
        "init pipe --ep qnn",
        "import pipe",
        "verify dist/right --inputs pipe",
        "verify dist/right --numbers --source pipe",
        "report --against pipe",
    ):
        done = answer(built, *arguments.split())
        assert done.returncode in (1, 2, 3), (arguments, done.stdout)
        assert done.stdout + done.stderr, arguments


@pytest.mark.parametrize("name", ["manifest.json", "left_qnn.bin"])
def test_no_command_waits_for_a_pipe_inside_an_output(built: Project, name: str) -> None:
    replaced(built.folder / "dist" / "left" / name)
    for command in ("verify", "inspect", "diff dist/right"):
        answer(built, *command.split(), "dist/left")


@pytest.mark.parametrize("name", ["state.sqlite", "clock", "logs/compile+left+npu+left.log", ".gitignore", "state.sqlite-wal"])
def test_no_command_waits_for_a_pipe_in_a_workspace(built: Project, name: str) -> None:
    place = built.folder / ".epbuild" / name
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place)
    write_model(built.folder / "left.onnx", 7)  # for a compile that writes a log
    for command in (
        "run --check",
        "run --set vars.quality=2",
        "plan",
        "log compile:left/npu/left",
        "report",
        "clean --all",
        "gc",
        "cache",
    ):
        answer(built, *command.split())


def test_a_pipe_among_build_reports_is_skipped(built: Project) -> None:
    for record in (built.folder / ".epbuild" / "reports").iterdir():
        replaced(record)
    assert answer(built, "report").returncode in (0, 1, 2)


def test_an_output_replaced_by_a_link_counts_as_missing(built: Project) -> None:
    path = built.folder / OUTPUT
    moved = path.rename(built.folder / "moved.onnx")
    path.symlink_to(moved)
    fast = answer(built, "run", "--check")
    shutil.rmtree(built.cache / "looks")
    assert (fast.returncode, answer(built, "run", "--check").returncode) == (1, 1)
    assert answer(built, "run").returncode == 0
    assert not path.is_symlink()
    assert moved.is_file()


def test_linked_models_are_watched_with_their_targets(piped: Project) -> None:
    blobs = piped.folder / "blobs"
    blobs.mkdir()
    for name in ("left", "right"):
        (piped.folder / f"{name}.onnx").rename(blobs / name)
        (piped.folder / f"{name}.onnx").symlink_to(f"blobs/{name}")
    piped.build()
    assert answer(piped, "run", "--check").returncode == 0
    write_model(blobs / "left", 7)
    assert answer(piped, "run", "--check").returncode == 1
    piped.build()
    (piped.folder / "right.onnx").unlink()
    (piped.folder / "right.onnx").symlink_to("blobs/left")
    assert answer(piped, "run", "--check").returncode == 1
    piped.build()
    assert "Nothing to do" in answer(piped, "run").stdout


def test_a_folder_of_models_can_be_a_link(piped: Project) -> None:
    for number in (1, 2):
        (piped.folder / f"models{number}").mkdir()
        write_model(piped.folder / f"models{number}" / "left.onnx", number)
    (piped.folder / "models").symlink_to("models1")
    piped.edit("left: left.onnx", "left: models/left.onnx")
    piped.build()
    assert "Nothing to do" in answer(piped, "run").stdout
    (piped.folder / "models").unlink()
    (piped.folder / "models").symlink_to("models2")
    assert answer(piped, "run", "--check").returncode == 1


@pytest.mark.parametrize("folder", ["dist/left", "dist"])
def test_the_fast_path_agrees_on_a_folder_replaced_by_a_link(built: Project, folder: str) -> None:
    moved = (built.folder / folder).rename(built.folder / "moved")
    (built.folder / folder).symlink_to(moved)
    fast = answer(built, "run", "--check")
    shutil.rmtree(built.cache / "looks")
    whole = answer(built, "run", "--check")
    assert (fast.returncode, fast.stdout) == (whole.returncode, whole.stdout)

"""A pipe where a file is asked for is told in a sentence; nothing waits for somebody to write into it."""

from __future__ import annotations

import os

import pytest
import warm_start
from projects import Project
from quick_builds import write_project

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
SOON = 30
"""Seconds within which a command has an answer."""


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


@pytest.mark.parametrize("command", ["validate", "plan", "run", "lock", "clean"])
def test_a_pipe_is_no_recipe(piped: Project, command: str) -> None:
    assert "pipe: error: the recipe cannot be read: Not a regular file. [EPB100]" in refusal(piped, command, "pipe")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: quick", "name: quick\nextends: pipe", "epbuild.yaml:3:10: error: not a file: 'pipe'."),
        ("name: quick", "name: quick\ninclude: [pipe]", "epbuild.yaml:3:11: error: not a file: 'pipe'."),
        ("name: quick", "name: quick\ncatalogs: [pipe]", "error: the catalog file 'pipe' cannot be used: "),
        ("left: left.onnx", "left: pipe", "error: the model 'left' is not a file: pipe. "),
        ("backend_type: htp", "backend_type: htp\n      qnn_ir_backend_path: ./pipe", "names a file that does not exist: ./pipe"),
        ("toolchain: qnn", "toolchain: qnn\n    library: pipe", "error: the plugin library does not exist: pipe."),
    ],
)
def test_a_pipe_among_what_a_recipe_names_is_told_where_it_is_named(piped: Project, old: str, new: str, words: str) -> None:
    piped.edit(old, new)
    for command in ("validate", "run"):
        assert words in refusal(piped, command)


def test_a_pipe_is_no_interpreter(piped: Project) -> None:
    piped.edit("packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", "interpreter: ./pipe")
    told = refusal(piped, "run")
    assert f"epbuild.yaml:5:3: error: the interpreter {piped.folder / 'pipe'} does not run: " in told


@pytest.mark.parametrize("command", ["plan", "run", "lock", "run --locked"])
def test_a_pipe_is_no_lock(piped: Project, command: str) -> None:
    (piped.folder / "pipe").rename(piped.folder / "epbuild.lock")
    told = refusal(piped, *command.split())
    assert "epbuild.lock:1:1: error: the lock cannot be read: Not a regular file." in told
    assert "[EPB242]" in told
    assert (piped.folder / "epbuild.lock").is_fifo()

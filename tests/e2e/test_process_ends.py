"""Ends of a build by Ctrl-C, Ctrl-Break or a kill: no process is left, and the next build is complete."""

from __future__ import annotations

import signal
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epbuild.core.host import list_interrupts
from tests.support.projects import Project
from tests.support.quick_builds import ORPHANS_END_WITHIN, PATIENCE, wait_until, write_model

pytestmark = pytest.mark.gate

RECIPE = """\
epbuild: 1
name: ends
toolchains:
  tools: {interpreter: "%s"}
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models:
  m: {make: {run: [python, make.py, "${out}", "%s"], toolchain: tools, files: [make.py, m.onnx]}}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
"""
# Starts a child, writes the ids of both processes, and writes the model once the folder `go` exists.
MAKE = """\
import os, pathlib, shutil, subprocess, sys, time
out, go = sys.argv[1], pathlib.Path(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
begun = go.with_name("begun")
begun.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
begun.with_suffix(".new").replace(begun)
while not go.exists():
    time.sleep(0.02)
child.kill()
shutil.copyfile(pathlib.Path(__file__).with_name("m.onnx"), out)
"""
# Raises a signal in a thread, as the C library of Windows does if a key is pressed.
INTERRUPT = """\
import ctypes, pathlib, sys, threading, time
number, begun = int(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
def interrupt():
    while not begun.exists():
        time.sleep(0.02)
    getattr(library, "raise")(number)
threading.Thread(target=interrupt, daemon=True).start()
from epbuild.__main__ import main
main()
"""
STEP = "prepare:m/make"


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Project]:
    """Return a project whose only step waits until the folder `go` exists."""
    project = Project(tmp_path / "project", tmp_path / "cache")
    project.folder.mkdir()
    (project.folder / "make.py").write_text(MAKE, encoding="utf-8")
    write_model(project.folder / "m.onnx", 1)
    venv.create(tmp_path / "venv")
    [python] = [path for path in (tmp_path / "venv").glob("*/python*") if path.stem == "python"]
    project.recipe.write_text(RECIPE % (python.as_posix(), (tmp_path / "go").as_posix()), encoding="utf-8")
    yield project
    for process in find_worker(project):
        process.kill()


def find_worker(project: Project) -> list[psutil.Process]:
    """Return the processes of the step that still run."""
    begun = project.folder.parent / "begun"
    pids = map(int, begun.read_text(encoding="utf-8").split()) if begun.exists() else ()
    found = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
    return found


def check_end(project: Project) -> None:
    """Check that the step's processes end, and that the next build makes the model."""
    wait_until(lambda: not find_worker(project), ORPHANS_END_WITHIN, "the processes end")
    (project.folder.parent / "go").mkdir()
    done = project.epbuild("run", STEP)
    assert done.returncode == 0, done.stderr
    assert "1 built" in done.stdout
    assert [path.name for path in (project.folder / ".epbuild" / "tmp").glob("*")] == []


@pytest.mark.parametrize("number", list_interrupts(), ids=lambda number: signal.Signals(number).name)
def test_interrupted_build_ends_its_worker_and_exits_with_130(waiting: Project, number: int) -> None:
    done = waiting.run_script(INTERRUPT, str(number), str(waiting.folder.parent / "begun"), "run", STEP, timeout=PATIENCE)
    assert done.returncode == 130, done.stderr
    assert "epbuild: interrupted; finished work is kept" in done.stderr
    check_end(waiting)


def test_killed_build_ends_its_worker(waiting: Project) -> None:
    command, environment = waiting.command("run", STEP)
    with subprocess.Popen(
        command, cwd=waiting.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as build:
        wait_until((waiting.folder.parent / "begun").exists, what="the step begins")
        build.kill()
    check_end(waiting)

"""Inputs that change under a build's feet: links that lead elsewhere, and toolchains that somebody works on meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from conftest import Project
from quick_builds import write_model, write_project

pytestmark = pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")
UP_TO_DATE = "Nothing to do: 4 steps are up to date"


@pytest.fixture
def quick(project: Project) -> Project:
    return write_project(project)


def settle(project: Project) -> None:
    """Builds until nothing is left to do, and that is known from a snapshot."""
    project.build()
    time.sleep(2.1)
    for _ in range(2):
        done = project.epbuild("run")
        assert (done.returncode, done.stdout.startswith(UP_TO_DATE)) == (0, True), done.stdout + done.stderr
    assert list((project.folder / ".epbuild").glob("snapshot-*"))


def test_the_model_above_the_folder_that_a_link_leads_to_is_the_one_that_is_watched(quick: Project) -> None:
    (quick.folder / "real" / "deep").mkdir(parents=True)
    (quick.folder / "link").symlink_to(Path("real", "deep"))
    write_model(quick.folder / "real" / "x.onnx", 7)
    write_model(quick.folder / "x.onnx", 8)
    quick.edit("left: left.onnx", "left: link/../x.onnx")
    settle(quick)
    write_model(quick.folder / "real" / "x.onnx", 9)
    assert quick.epbuild("run", "--check").returncode == 1
    before = quick.files()
    quick.build()
    assert quick.files() != before
    assert quick.epbuild("run", "--check").returncode == 0

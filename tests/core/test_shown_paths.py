"""Spelling of paths in messages: the same for relative paths on every system."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from epbuild.core.errors import Position, Problem
from epbuild.core.shown import format_path
from tests.support.projects import Project
from tests.support.quick_builds import write_standin_project


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (PureWindowsPath("dist\\npu/a.onnx"), "dist/npu/a.onnx"),
        (PureWindowsPath("C:/dist/a.onnx"), "C:\\dist\\a.onnx"),
        (PureWindowsPath("//server/share/a.onnx"), "\\\\server\\share\\a.onnx"),
        (PurePosixPath("dist/a\\b.onnx"), "dist/a\\b.onnx"),
        (str(Path("dist", "a.onnx")), "dist/a.onnx"),
        (Path.cwd() / "dist" / "a.onnx", "dist/a.onnx"),
        (Path.cwd().parent, str(Path.cwd().parent)),
    ],
)
def test_relative_paths_have_slashes_and_absolute_ones_are_kept(path: PureWindowsPath | str, shown: str) -> None:
    assert format_path(path) == shown


def test_locations_of_problems_have_slashes() -> None:
    place = Path("recipes", "a.yaml")
    assert str(Problem("EPB100", "m", place)) == "recipes/a.yaml: m. [EPB100]"
    assert str(Problem("EPB100", "m", Position(str(place), 2, 3))) == "recipes/a.yaml:2:3: m. [EPB100]"


@pytest.mark.parametrize("command", ["inspect", "verify", "diff", "relink", "validate", "report"])
def test_commands_show_a_relative_path_with_slashes(project: Project, command: str) -> None:
    missing = str(Path("dist", "npu", "none"))
    more = {"diff": [missing], "relink": ["--embed", "--in-place"], "report": ["--against", missing]}.get(command, [])
    done = project.epbuild(command, missing, *more)
    assert done.returncode in {1, 2, 3}
    assert "dist/npu/none" in done.stderr
    assert "\\" not in done.stderr


def test_damaged_workspace_is_named_with_slashes(project: Project) -> None:
    write_standin_project(project)
    (project.folder / ".epbuild").write_text("a file", encoding="utf-8")
    done = project.epbuild("run")
    assert done.returncode == 3
    assert "cannot create .epbuild" in done.stderr

"""Files that diagnostic options request are kept beside the log of the step."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.projects import Project, compiled
from tests.support.quick_builds import write_project

OPTIONS = """\
      profiling_level: basic
      profiling_file_path: profile.csv
      dump_json_qnn_graph: true
      json_qnn_graph_dir: graphs
"""
STEP = "compile:left/npu/left"


def test_diagnostic_files_are_kept_beside_the_log_and_restored_with_the_result(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    project = write_project(Project(tmp_path / "project", tmp_path / "cache"))
    project.build("epbuild.yaml", STEP)
    project.edit("      soc_model: SM8750\n", f"      soc_model: SM8750\n{OPTIONS}")
    assert compiled(project.build("epbuild.yaml", STEP)) == {STEP}
    logs = ".epbuild/logs/compile+left+npu+left"
    names = sorted(project.files(logs))
    assert "profile.csv" in names
    assert any(name.startswith("graphs/") and name.endswith(".json") for name in names)
    shutil.rmtree(project.folder / ".epbuild")
    assert compiled(project.build("epbuild.yaml", STEP)) == set()
    assert sorted(project.files(logs)) == names
    # A rebuild writes another profile. Only compiled files are compared.
    done = project.epbuild("run", "epbuild.yaml", STEP, "--rebuild-and-compare")
    assert done.returncode == 0, done.stdout + done.stderr

"""Builds on Windows in two minutes of wine: one model with the real QNN EP, and everything else with a stand-in for the EP."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from epbuild.remote.keys import SigningKey
from tests.e2e.fallback_models import write_models
from tests.support.projects import Project, compiled, emitted
from tests.support.quick_builds import (
    COMPILES,
    GROUPS,
    PATIENCE,
    STANDIN,
    check_blobs,
    check_no_leftovers,
    check_no_workers,
    start,
    wait_until,
    workers,
)

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="other tests have more of each on Linux")

REAL = """\
epbuild: 1
name: real
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: [mixed.onnx]
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  mixed: {expect: {fallback_nodes: 0}}
"""
CHANGE = ("--set", "vars.quality=2")


@pytest.fixture
def standin(project: Project) -> Project:
    return STANDIN.write(project)


def test_the_real_ep_reports_its_reasons_and_compiles_nothing_twice(project: Project) -> None:
    write_models(project.folder)
    project.recipe.write_text(REAL, encoding="utf-8")
    done = project.epbuild("run")
    assert done.returncode == 1
    assert "QNN Mod Op only support fmod == 0 for now (1 node)" in " ".join(done.stderr.split())
    project.edit("fallback_nodes: 0", "fallback_nodes: 1")
    events = project.build()
    assert (compiled(events), len(emitted(events))) == (set(), 1)
    assert "Nothing to do" in project.epbuild("run").stdout


def test_a_killed_build_leaves_no_worker_and_the_next_is_complete(standin: Project) -> None:
    standin.build()
    build = start(standin, "run", *CHANGE)
    wait_until(lambda: bool(workers(standin)) or build.poll() is not None)
    build.kill()
    build.communicate(timeout=PATIENCE)
    check_no_workers(standin)
    check_blobs(standin.cache)
    standin.build(*CHANGE)
    assert "Nothing to do" in standin.epbuild("run", *CHANGE).stdout
    check_no_leftovers(standin)


def test_two_builds_at_once_compile_each_model_once(standin: Project) -> None:
    builds = [start(standin, "run", "--json") for _ in range(2)]
    told = [build.communicate(timeout=PATIENCE) for build in builds]
    assert [build.returncode for build in builds] == [0, 0], told
    steps = [step for text, _ in told for step in compiled([json.loads(line) for line in text.splitlines()])]
    assert sorted(steps) == sorted(COMPILES)
    check_no_leftovers(standin)


def test_archives_and_a_report_are_written_and_a_remote_cache_is_shared(standin: Project, tmp_path: Path) -> None:
    key = SigningKey.generate()
    standin.edit("epbuild: 1\n", f"epbuild: 1\ncache: {{remote: ../remote, trust: ['{key.public}']}}\n")
    standin.edit('path: "dist/${group}"', 'archive: zip, path: "dist/${group}.zip"')
    standin.environment["EPBUILD_SIGNING_KEY"] = key.text
    assert compiled(standin.build("--remote-cache", "write", "--report", "build.html")) == COMPILES
    assert "<html" in (standin.folder / "build.html").read_text(encoding="utf-8")
    for group in GROUPS:
        with zipfile.ZipFile(standin.folder / f"dist/{group}.zip") as archive:
            listed = {file["path"]: file["sha256"] for file in json.loads(archive.read("manifest.json"))["files"]}
            names = set(archive.namelist()) - {"manifest.json"}
            assert {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names} == listed
    other = Project(tmp_path / "other", tmp_path / "other cache")
    shutil.copytree(standin.folder, other.folder, ignore=shutil.ignore_patterns("dist", ".epbuild", "standin"))
    assert compiled(other.build()) == set()
    assert other.files() == standin.files()

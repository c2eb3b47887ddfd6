"""One remote cache for Linux and for Windows under wine: each restores what the other compiled for it, and nothing else."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from epbuild.remote.keys import SigningKey
from tests.support.projects import Project
from tests.support.quick_builds import write_model
from tests.support.windows import WineProject, need_wine

pytestmark = [pytest.mark.exhaustive, need_wine()]

OURS = SigningKey.generate()
COPY = "import shutil, sys\nshutil.copyfile(*sys.argv[1:])\n"
RECIPE = """\
epbuild: 1
name: both
cache: {remote: ../remote, trust: [KEY]}
toolchains:
  linux: {packages: [PACKAGES], platforms: [linux-x86_64]}
  windows: {packages: [PACKAGES], platforms: [windows-x86_64]}
  either: {packages: [PACKAGES], platforms: [linux-x86_64, windows-x86_64]}
models:
  own: own.onnx
  plain: plain.onnx
  prepared:
    path: prepared.onnx
    prepare: [{run: [python, duplicate.py, "${in}", "${out}"], files: [duplicate.py], toolchain: linux}]
targets:
  linux: {toolchain: linux, ep: QNNExecutionProvider, provider_options: {OPTIONS}}
  windows: {toolchain: windows, ep: QNNExecutionProvider, provider_options: {OPTIONS}}
  either: {toolchain: either, ep: QNNExecutionProvider, provider_options: {OPTIONS}}
groups:
  own: {models: [own], targets: [either]}
  plain: {models: [plain], targets: [linux, windows]}
  prepared: {models: [prepared], targets: [windows]}
outputs:
  - {layout: directory, path: "dist/${group}/${target}"}
"""
TEXTS = {
    "KEY": OURS.public,
    "PACKAGES": "onnxruntime==1.31.1, onnxruntime-qnn==2.7.0",
    "OPTIONS": "backend_type: htp, soc_model: SM8750",
}
MODELS = ("own", "plain", "prepared")
OUTPUTS = {"own/either", "plain/linux", "plain/windows", "prepared/windows"}


def machine(kind: type[Project], folder: Path, lock: Path | None = None) -> Project:
    """Return a checkout with an empty store that may read and write the remote cache."""
    project = kind(folder, folder.with_name(f"{folder.name}-cache"), {"EPBUILD_SIGNING_KEY": OURS.text})
    folder.mkdir()
    for seed, name in enumerate(MODELS):
        write_model(folder / f"{name}.onnx", seed, width=16)
    (folder / "duplicate.py").write_text(COPY, encoding="utf-8")
    text = RECIPE
    for name, value in TEXTS.items():
        text = text.replace(name, value)
    project.recipe.write_text(text, encoding="utf-8")
    if lock is not None:
        shutil.copy(lock, folder)
    return project


def build(project: Project) -> dict[str, str]:
    """Return how each step but those that emit ended: `built`, or where its result came from."""
    ended = [event for event in project.build("--remote-cache", "write") if event["event"] == "step_finished"]
    return {event["step"]: event.get("from") or event["outcome"] for event in ended if not event["step"].startswith("emit:")}


def test_each_platform_restores_only_results_for_it(tmp_path: Path) -> None:
    linux = machine(Project, tmp_path / "linux")
    assert linux.epbuild("lock").returncode == 0
    new = partial(machine, lock=linux.folder / "epbuild.lock")

    done = linux.epbuild("run", "--keep-going", "--remote-cache", "write")
    assert (done.returncode, "EPB416" in done.stderr) == (3, True), done.stderr
    made = linux.files()
    assert {name.rpartition("/")[0] for name in made} == {"plain/linux", "own/either"}

    windows = new(WineProject, tmp_path / "windows")
    assert build(windows) == {
        "prepare:prepared/1-run": "remote",
        "compile:plain/linux/plain": "remote",
        "compile:own/either/own": "built",
        "compile:plain/windows/plain": "built",
        "compile:prepared/windows/prepared": "built",
    }

    for kind, first in ((Project, linux), (WineProject, windows)):
        second = new(kind, tmp_path / f"other {first.folder.name}")
        assert set(build(second).values()) == {"remote"}
        restored = second.files()
        assert first.files().items() <= restored.items(), "the same bytes as from the machine that compiled"
        assert {name.rpartition("/")[0] for name in restored} == OUTPUTS
    assert binary(linux, "own/either/own") != binary(windows, "own/either/own")
    assert binary(linux, "plain/linux/plain") == binary(windows, "plain/linux/plain")


def binary(project: Project, model: str) -> bytes:
    return (project.folder / f"dist/{model}_qnn.bin").read_bytes()

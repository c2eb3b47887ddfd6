"""`measure` with the real QNN EP: on the emulator only if the recipe asks for it, and with the profile that the EP writes."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.projects import Project
from tests.support.quick_builds import RECIPE, write_project

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]
LEFT, RIGHT = (f"  {name}: {{models: [{name}], targets: [npu]}}\n" for name in ("left", "right"))
ON_EMULATOR = ", measure: {on: emulator, runs: 3, profile: true}, expect: {load_ms: 100000}}"
PROFILED = (
    "      soc_model: SM8750\n",
    "      soc_model: SM8750\n      profiling_level: basic\n      profiling_file_path: profile.csv\n",
)


def test_the_emulator_is_measured_only_on_request_and_marked(project: Project) -> None:
    write_project(project)
    text = RECIPE.replace(LEFT, LEFT.replace("}", ON_EMULATOR)).replace(RIGHT, RIGHT.replace("}", ", measure: {on: device}}"))
    project.recipe.write_text(text.replace(*PROFILED), encoding="utf-8")
    done = project.epbuild("run", "--keep-going")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "measure:right/npu: error: QNNExecutionProvider has no real device here: only cpu" in done.stderr
    assert "[EPB667]" in done.stderr
    assert not (project.folder / "dist" / "right").exists()
    measured = json.loads((project.folder / "dist/left/manifest.json").read_text(encoding="utf-8"))["models"][0]["measured"]
    assert measured["on"] == "emulator"
    assert measured["device"].startswith("cpu")
    assert measured["figures"].keys() == {"load_ms", "latency_ms.first", "latency_ms.p50", "latency_ms.p95", "peak_memory"}
    assert all(value > 0 for value in measured["figures"].values())
    [row] = json.loads(project.epbuild("report", "--json").stdout)["measurements"]
    assert (row["figures"], row["files"]) == (measured["figures"], ["onnxruntime_profile.json", "profile.csv", "profile_qnn.log"])
    assert list((project.folder / ".epbuild" / "logs").rglob("left/profile.csv"))
    [profile] = (project.folder / ".epbuild" / "logs").rglob("left/onnxruntime_profile.json")
    runs = [event for event in json.loads(profile.read_text(encoding="utf-8")) if event["cat"] == "Node"]
    assert len(runs) == 3
    assert all("QNN" in event["name"] and event["dur"] > 0 for event in runs)
    assert "on an emulator" in done.stdout
    assert "Coverage: 2 models for 1 target: 1 whole, 1 failed measure" in done.stdout
    growth = "max_growth: {bytes: 0, load_ms: 0}, baseline: dist/left"
    project.recipe.write_text(project.recipe.read_text("utf-8").replace("load_ms: 100000", growth), encoding="utf-8")
    table = project.epbuild("measure", "measure:left/*").stdout.splitlines()
    assert table[0].startswith("On an emulator 'cpu from ")
    assert table[-1].startswith("left/npu/left ")

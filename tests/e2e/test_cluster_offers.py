"""Offers of workers: probed, reported, and withdrawn when a machine turns out to lack a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import Cluster, running_cluster
from tests.support.projects import Project
from tests.support.quick_builds import COMPILES, write_project

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1, probes_all=True) as running:
        yield running


def project_for(folder: Path, cluster: Cluster) -> Project:
    project = write_project(Project(folder / "project", folder / "cache"))
    project.edit("epbuild: 1\n", "epbuild: 1\n" + cluster.recipe_lines)
    return project


def on(cluster: Cluster) -> tuple[str, str]:
    return "--executor", cluster.address


def test_a_worker_probes_its_eps_and_offers_no_emulator_as_a_device(cluster: Cluster, tmp_path: Path) -> None:
    [worker] = cluster.workers
    worker.wait_for("ep:QNNExecutionProvider, ep:QNNExecutionProvider@cpu: compiles with onnxruntime-qnn")
    worker.wait_for("real:QNNExecutionProvider, real:QNNExecutionProvider@npu: no longer offered: only cpu from")
    project = project_for(tmp_path, cluster)
    project.edit("right: {models: [right], targets: [npu]}", "right: {models: [right], targets: [npu], verify: {device: real}}")
    done = project.epbuild("run", "--keep-going", *on(cluster))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "EPB667" in done.stderr
    assert (project.folder / "dist/left").exists()
    assert not (project.folder / "dist/right").exists()
    [load] = json.loads(project.epbuild("plan", "--json", *on(cluster)).stdout)["workloads"]
    assert (load["eps"], load["real_device"], load["slots"]) == (["QNNExecutionProvider"], True, 0)
    [machine] = load["others"]
    assert machine["why"].startswith("only cpu from")
    shown = " ".join(project.epbuild("plan", *on(cluster)).stdout.split())
    assert "on a real device" in shown
    assert "cpu from" in shown


def test_an_ability_that_fails_when_used_is_no_longer_offered(cluster: Cluster, tmp_path: Path) -> None:
    """Ask for a GPU that this machine lacks. The EP reports that only when it compiles."""
    project = project_for(tmp_path, cluster)
    text = project.recipe.read_text(encoding="utf-8").replace(
        "[onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]", "[onnxruntime-openvino==1.24.1]"
    )
    begin, end = text.index("    ep: QNN"), text.index("groups:")
    options = "    ep: OpenVINOExecutionProvider\n    provider_options: {device_type: GPU}\n"
    project.recipe.write_text(text[:begin] + options + text[end:], encoding="utf-8")
    done = project.epbuild("run", *on(cluster))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot compile for this GPU or NPU here" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    cluster.workers[0].wait_for("ep:OpenVINOExecutionProvider@gpu: no longer offered")
    [load] = json.loads(project.epbuild("plan", "--json", *on(cluster)).stdout)["workloads"]
    assert (load["eps"], load["machines"], load["likely_seconds"]) == (["OpenVINOExecutionProvider@gpu"], [], None)


def test_workers_run_only_the_eps_and_preparations_that_they_name(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", workers=0) as own:
        project = project_for(tmp_path, own)
        project.edit("left: left.onnx", "left: {path: left.onnx, prepare: [{infer_shapes: {}, toolchain: qnn}]}")
        project.edit("onnxruntime-qnn==2.7.0]", "onnxruntime-qnn==2.7.0, onnx]")
        own.start_worker("--only", "QNNExecutionProvider").wait_for("working for")
        own.start_worker("--only", "OpenVINOExecutionProvider").wait_for("working for")
        loads = json.loads(project.epbuild("plan", "--json", *on(own)).stdout)["workloads"]
        assert {tuple(load["eps"]): load["slots"] for load in loads} == {(): 0, ("QNNExecutionProvider",): 1}
        events = project.build(*on(own))
        machines = {event["step"]: event.get("machine") for event in events if event["event"] == "step_finished"}
        assert {step for step, machine in machines.items() if machine is not None} == COMPILES
        own.start_worker("--only", "OpenVINOExecutionProvider", "--only", "prepare").wait_for("working for")
        project.edit("infer_shapes: {}", "infer_shapes: {data_prop: true}")
        events = project.build(*on(own))
        made = {event["step"] for event in events if event["event"] == "step_finished" and event.get("machine")}
        assert "prepare:left/1-infer_shapes" in made

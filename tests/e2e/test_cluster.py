"""Builds on a Dask cluster: the same bytes as local builds, even when processes are lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epbuild.cluster.certificates import make_certificates
from epbuild.commands.plan import survey
from epbuild.commands.workload import list_workloads_on
from epbuild.session.request import Request
from tests.support.clusters import PATIENCE, Cluster, compilers, on, outcomes, quick, running_cluster, slow_project
from tests.support.projects import RECIPES, Project, compiled
from tests.support.quick_builds import COMPILES, start, wait_until

pytestmark = pytest.mark.gate


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


def test_a_cluster_builds_the_quickstart_once_with_identical_bytes(
    cluster: Cluster, tmp_path: Path, quickstart_store: Path
) -> None:
    projects = []
    for name in ("here", "there", "again"):
        shutil.copytree(RECIPES, tmp_path / name, ignore=shutil.ignore_patterns(".epbuild", "dist"))
        (tmp_path / name / "epbuild.yaml").write_text(
            (RECIPES / "quickstart.yaml")
            .read_text(encoding="utf-8")
            .replace("epbuild: 1\n", "epbuild: 1\n" + cluster.recipe_lines, 1),
            encoding="utf-8",
        )
        projects.append(Project(tmp_path / name, tmp_path / f"cache-{name}"))
    here, there, again = projects
    shutil.copytree(quickstart_store, here.cache)  # which was compiled on this machine
    assert compiled(here.build("--remote-cache", "off")) == set()
    events = there.build(*on(cluster))
    assert None not in {machine for outcome, machine in outcomes(events).values() if outcome == "built"}
    assert compiled(events)
    assert here.files("dist") == there.files("dist")
    assert compiled(again.build(*on(cluster))) == set()
    assert again.files("dist") == here.files("dist")


def test_two_concurrent_builds_run_each_action_once(cluster: Cluster, tmp_path: Path) -> None:
    projects = [quick(tmp_path, cluster, "both", name) for name in ("one", "two")]
    running = [start(project, "run", "--json", *on(cluster)) for project in projects]
    events = []
    for process in running:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, output + errors
        events.append([json.loads(line) for line in output.splitlines()])
    assert projects[0].files("dist") == projects[1].files("dist")
    # One task serves both builds, and each receives its result.
    assert set().union(*map(compiled, events)) == COMPILES


ZOO = """\
  npu:
    matrix:
      soc: SOCS
      mode: ["1", "2", "3"]
      vtcm: ["1", "2", "4", "8"]
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: ${matrix.soc}
      htp_graph_finalization_optimization_mode: ${matrix.mode}
      vtcm_mb: ${matrix.vtcm}
"""
SOCS = ["SM8750", "SM8650", "SM8550", "SM8475", "SM8450"]
PER_SOC = 12


def zoo(folder: Path, cluster: Cluster, name: str) -> Project:
    """Return a small model for `PER_SOC` targets of each SoC."""
    project = quick(folder, cluster, "zoo", name)
    text = project.recipe.read_text(encoding="utf-8")
    begin, end = text.index("  npu:\n"), text.index("groups:\n")
    text = text[:begin] + ZOO.replace("SOCS", json.dumps(SOCS)) + text[end:]
    text = text.replace("  right: {models: [right], targets: [npu]}\n", "  default: none\n").replace(
        "targets: [npu]", "targets: [npu-*]"
    )
    project.recipe.write_text(text.replace("dist/${group}", "dist/${target}"), encoding="utf-8")
    return project


@pytest.mark.exhaustive
def test_two_concurrent_builds_compile_each_of_many_targets_once(tmp_path: Path) -> None:
    targets = PER_SOC * len(SOCS)
    with running_cluster(tmp_path / "cluster", workers=2) as cluster:
        projects = [zoo(tmp_path, cluster, name) for name in ("one", "two")]
        running = [start(project, "run", "--json", *on(cluster)) for project in projects]
        for process in running:
            output, errors = process.communicate(timeout=540)
            assert process.returncode == 0, output + errors
        here, again = (zoo(tmp_path, cluster, name) for name in ("here", "again"))
        assert len(compiled(here.build("--remote-cache", "off"))) == targets
        assert projects[0].files() == projects[1].files() == here.files()
        # A worker records the results that it creates, but not those that it finds elsewhere.
        made = [path.stem for path in cluster.folder.glob("cache-*/actions/*/*.json")]
        assert (len(made), len(set(made))) == (targets, targets)
        assert compiled(again.build(*on(cluster))) == set()
        assert again.files() == here.files()


def test_a_plan_shows_the_machines_and_time_for_missing_results(cluster: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, cluster, "plan")
    shown = project.epbuild("plan", *on(cluster)).stdout
    assert "QNNExecutionProvider" in shown
    assert "2 actions" in shown
    assert "on 2 machines, 2 at once" in shown
    [load] = json.loads(project.epbuild("plan", "--json", *on(cluster)).stdout)["workloads"]
    assert (load["eps"], load["actions"], load["slots"]) == (["QNNExecutionProvider"], 2, 2)
    assert load["likely_seconds"] == load["seconds"] / 2
    request = Request(project.recipe)
    [nobodys] = list_workloads_on((), request, survey(request))
    assert (nobodys.machines, nobodys.likely_seconds) == ((), None)


def test_a_remote_failure_equals_a_local_failure_and_names_the_machine(cluster: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, cluster, "fails")
    project.edit("soc_model: SM8750", "soc_model: SM9999")
    project.edit("    toolchain: qnn\n", "    toolchain: qnn\n    allow_unknown_options: true\n")
    done = project.epbuild("run", *on(cluster))
    assert done.returncode == 1
    assert "not for SM9999" in done.stderr
    assert " on " in done.stderr
    assert "Traceback" not in done.stderr
    assert "Unrecognized soc_model" in project.epbuild("log", "epbuild.yaml", "compile:left/npu/left").stdout


def test_preparations_and_numeric_checks_run_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, cluster, "numbers")
    project.edit("left: left.onnx", "left: {path: left.onnx, prepare: [{infer_shapes: {}, toolchain: qnn}]}")
    project.edit("right: {models: [right], targets: [npu]}", "right: {models: [right], targets: [npu], verify: true}")
    project.edit("onnxruntime-qnn==2.7.0]", "onnxruntime-qnn==2.7.0, onnx]")
    events = project.build(*on(cluster))
    made = {step: machine for step, (outcome, machine) in outcomes(events).items() if outcome == "built"}
    assert made.keys() == {*COMPILES, "prepare:left/1-infer_shapes", "verify:right/npu"}
    assert None not in made.values()


def test_a_client_without_toolchains_identifies_them_through_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, cluster, "identity")
    assert project.epbuild("lock").returncode == 0
    project.environment["EPBUILD_TOOLCHAIN_DIR"] = str(tmp_path / "none")
    events = project.build(*on(cluster))
    assert compiled(events) == COMPILES
    assert not (tmp_path / "none").exists()
    [ready] = [event for event in events if event["event"] == "toolchain_ready"]
    assert ready["note"].startswith("recorded by ")
    # Once in the remote cache, it also serves builds without a cluster.
    again = Project(project.folder, tmp_path / "another cache", project.environment)
    shutil.rmtree(project.folder / ".epbuild")
    assert compiled(again.build()) == set()
    assert not (tmp_path / "none").exists()


def records(cluster: Cluster) -> set[Path]:
    """Return the records of results in the remote cache."""
    return set((cluster.remote / "ac").glob("*"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster that the test may break."""
    with running_cluster(tmp_path / "cluster", workers=1) as running:
        yield running


@pytest.mark.skipif(os.name != "posix", reason="looks at processes as Linux shows them")
def test_another_worker_replaces_a_worker_that_dies_while_compiling(own: Cluster, tmp_path: Path) -> None:
    project = slow_project(tmp_path, own, "dies")
    process = start(project, "run", "--json", *on(own))
    wait_until(lambda: compilers(own), PATIENCE, "a compile")
    own.start_worker().wait_for("working for")
    own.workers[0].kill()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    assert compiled([json.loads(line) for line in output.splitlines()]) == COMPILES
    wait_until(lambda: not compilers(own), PATIENCE, "its compiler to end")


def test_running_actions_of_a_killed_client_are_finished_and_published(cluster: Cluster, tmp_path: Path) -> None:
    project = slow_project(tmp_path, cluster, "client")
    before = records(cluster)
    process = start(project, "run", "--json", *on(cluster))
    wait_until(lambda: compilers(cluster), PATIENCE, "a compile")
    process.kill()
    process.communicate()
    wait_until(lambda: records(cluster) - before, PATIENCE, "a result to be published")
    wait_until(lambda: not compilers(cluster), PATIENCE, "the other compile to end")


def test_ctrl_c_stops_actions_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    project = slow_project(tmp_path, cluster, "interrupt")
    before = records(cluster)
    process = start(project, "run", *on(cluster))
    wait_until(lambda: compilers(cluster), PATIENCE, "a compile")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors, errors
    wait_until(lambda: not compilers(cluster), PATIENCE, "the compile to end")
    time.sleep(1)
    assert records(cluster) == before


def test_a_lost_scheduler_ends_the_build_and_the_next_build_restores(own: Cluster, tmp_path: Path) -> None:
    project = slow_project(tmp_path, own, "scheduler")
    process = start(project, "run", *on(own))
    wait_until(lambda: compilers(own), PATIENCE, "a compile")
    own.stop_scheduler()
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 3, output + errors
    assert "EPB535" in errors
    assert "Traceback" not in errors, errors
    own.start_scheduler()
    own.workers[0].wait_for("waiting for")
    events = project.build(*on(own))
    assert set(outcomes(events)) >= COMPILES
    assert project.files("dist")


def test_an_unreachable_scheduler_is_an_error_without_a_traceback(cluster: Cluster, tmp_path: Path) -> None:
    project = quick(tmp_path, cluster, "nobody")
    done = project.epbuild("run", "--executor", "dask://127.0.0.1:9")
    assert done.returncode == 3
    assert "EPB535" in done.stderr
    assert "Traceback" not in done.stderr


def test_clients_without_a_valid_certificate_are_refused(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates")
    make_certificates(tmp_path / "strangers")
    with running_cluster(tmp_path / "cluster", workers=1, certificates=tmp_path / "certificates") as guarded:
        project = quick(tmp_path, guarded, "tls")
        for options in ((), ("--tls", str(tmp_path / "strangers" / "client"))):
            done = project.epbuild("run", *on(guarded), *options)
            assert done.returncode == 3, done.stdout + done.stderr
            assert "EPB535" in done.stderr
            assert "Traceback" not in done.stderr
        events = project.build(*on(guarded), "--tls", str(tmp_path / "certificates" / "client"))
        assert compiled(events) == COMPILES

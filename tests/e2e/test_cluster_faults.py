"""Faults of a cluster: what a build reports, how it ends, and the state that the next build starts from."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epbuild.cache.location import find_toolchain_directory
from tests.support.cache_server import Fault, serving_cache
from tests.support.clusters import PATIENCE, Cluster, compilers, on, outcomes, quick, running_cluster, slow_project
from tests.support.gate import mark_rest_exhaustive
from tests.support.projects import Project, compiled, toolchain_python
from tests.support.quick_builds import COMPILES, start, wait_until

pytestmark = [
    pytest.mark.gate,
    pytest.mark.waits,
    pytest.mark.skipif(sys.platform != "linux", reason="processes and limits as Linux has them"),
]

DASKS_OWN: dict[str, str] = {}
"""The settings of a scheduler that is not configured for epbuild."""
LEFT, RIGHT = sorted(COMPILES)
KILLS = """\
import os
from pathlib import Path

process = os.getppid()
while b"spawn_main" not in Path(f"/proc/{process}/cmdline").read_bytes():
    process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
os.kill(process, 9)
"""
"""Code that kills its parent worker."""
COPIES = "import shutil, sys\nshutil.copy(*sys.argv[1:])\n"
SMALL = 500_000
"""Bytes, less than the size of a slow project's models."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster that the test may break."""
    with running_cluster(tmp_path / "cluster", workers=1) as running:
        yield running


def events_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def warned(events: list[dict[str, Any]]) -> list[str]:
    return [event["problem"]["code"] for event in events if event["event"] == "warned"]


def run(project: Project, cluster: Cluster, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Build, and return the exit code, the events and all output."""
    done = project.epbuild("run", "--json", *on(cluster), *options)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, events_of(done.stdout), done.stdout + done.stderr


def failures(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the codes of the failures by step."""
    return {
        event["step"]: [problem["code"] for problem in event["problems"]] for event in events if event["event"] == "step_failed"
    }


@pytest.mark.exhaustive  # tests/cluster/test_liveness.py finds frozen workers by day
def test_a_frozen_worker_is_replaced_even_with_default_scheduler_settings(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", workers=1, settings=DASKS_OWN) as cluster:
        project = slow_project(tmp_path, cluster, "freezes")
        process = start(project, "run", "--json", *on(cluster))
        wait_until(lambda: compilers(cluster), PATIENCE, "a compile")
        cluster.workers[0].freeze()
        cluster.start_worker().wait_for("working for")
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output + errors
        assert "takes over" in output
        assert compiled(events_of(output)) == COMPILES
        cluster.workers[0].thaw()
        cluster.workers[0].wait_for("waiting for")


@pytest.mark.parametrize("settings", mark_rest_exhaustive([None, DASKS_OWN], sample=[None]), ids=["recommended", "Dask's own"])
def test_an_action_that_kills_its_workers_fails_without_affecting_others(tmp_path: Path, settings: dict[str, str] | None) -> None:
    chosen = {} if settings is None else {"settings": settings}
    with running_cluster(tmp_path / "cluster", workers=2, **chosen) as cluster:
        project = quick(tmp_path, cluster, "kills")
        killing = "[{run: [python, scripts/kill.py, '${in}', '${out}'], files: [scripts], toolchain: qnn}]"
        project.edit("left: left.onnx", f"left: {{path: left.onnx, prepare: {killing}}}")
        (project.folder / "scripts").mkdir()
        (project.folder / "scripts" / "kill.py").write_text(KILLS, encoding="utf-8")
        code, events, text = run(project, cluster, "--keep-going")
        assert (code, failures(events)) == (1, {"prepare:left/1-run": ["EPB534"]}), text
        assert "machines disconnected while executing it" in text
        assert outcomes(events)[RIGHT][0] == "built"
        # The machines still serve other builds, and the next build retries lost actions.
        (project.folder / "scripts" / "kill.py").write_text(COPIES, encoding="utf-8")
        assert LEFT in compiled(project.build(*on(cluster)))


@pytest.mark.exhaustive  # tests/session/test_remote_machines.py does so without a cluster by day
def test_a_worker_with_another_release_gets_no_work_and_one_warning(own: Cluster, tmp_path: Path) -> None:
    older = "import sys, epbuild; epbuild.__version__ = '0.0.1'; from epbuild.__main__ import main; sys.exit(main())"
    own.start_worker(program=("-c", older)).wait_for("working for")
    code, events, text = run(quick(tmp_path, own, "release"), own)
    assert (code, warned(events)) == (0, ["EPB540"]), text
    [machine] = {machine for outcome, machine in outcomes(events).values() if outcome == "built"}
    assert machine is not None
    assert machine.endswith(f"-{own.workers[0].process.pid}")
    # Without another machine, this one runs the actions that it can.
    own.workers[0].kill()
    code, events, text = run(quick(tmp_path, own, "release-alone", "alone"), own)
    assert (code, warned(events)[:1]) == (0, ["EPB540"]), text
    assert {outcomes(events)[step] for step in COMPILES} == {("built", None)}


def other_toolchains(folder: Path) -> Path:
    """Copy the toolchain of the quick project and change one of its files."""
    packages = {"onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"}
    complete = find_toolchain_directory().glob("*/complete")
    [real] = [marker.parent for marker in complete if {*json.loads(marker.read_text(encoding="utf-8"))} == packages]
    # Copies, not links: those would change the ctime of files that other tests compile with at the same moment.
    shutil.copytree(real, folder / real.name, symlinks=True)
    [changed] = (folder / real.name).glob("env/lib/*/site-packages/onnxruntime/__init__.py")
    text = changed.read_text(encoding="utf-8")
    changed.unlink()
    changed.write_text(f"{text}\n# changed\n", encoding="utf-8")
    (folder / real.name / "fingerprint.json").unlink()
    return folder


@pytest.mark.exhaustive  # tests/cluster/test_executor.py lets a worker refuse a toolchain by day
def test_a_worker_with_another_toolchain_gets_no_work_and_one_warning(own: Cluster, tmp_path: Path) -> None:
    changed = str(other_toolchains(tmp_path / "toolchains"))
    own.start_worker(environment={"EPBUILD_TOOLCHAIN_DIR": changed}).wait_for("working for")
    sound, other = own.workers
    code, events, text = run(quick(tmp_path, own, "toolchain"), own)
    assert (code, warned(events)) == (0, ["EPB541"]), text
    machines = {machine for outcome, machine in outcomes(events).values() if outcome == "built"}
    assert [str(machine).rpartition("-")[2] for machine in machines] == [str(sound.process.pid)]
    sound.kill()
    code, events, text = run(quick(tmp_path, own, "toolchain-alone", "alone"), own, "--keep-going")
    assert (code, warned(events)[:1]) == (3, ["EPB541"]), text
    assert failures(events) == {LEFT: ["EPB532"], RIGHT: ["EPB532"]}
    assert str(other.process.pid) in text


@pytest.mark.exhaustive  # by day, workers refuse other actions, and builds of this machine meet a full disk
def test_a_full_disk_moves_actions_to_another_worker_or_fails_clearly(own: Cluster, tmp_path: Path) -> None:
    own.start_worker(file_size=SMALL).wait_for("working for")
    roomy, full = own.workers
    code, events, text = run(slow_project(tmp_path, own, "disk"), own)
    assert (code, warned(events)) == (0, ["EPB541"]), text
    assert compiled(events) == COMPILES
    roomy.kill()
    code, events, text = run(slow_project(tmp_path, own, "disk-alone", "alone"), own, "--keep-going")
    assert (code, set(failures(events))) == (3, COMPILES), text
    assert f"-{full.process.pid}" in text
    assert "disk space" in text


def test_a_lost_remote_cache_ends_the_build_and_the_next_build_restores(tmp_path: Path) -> None:
    with serving_cache() as server, running_cluster(tmp_path / "cluster", workers=1, place=server.address) as cluster:
        project = slow_project(tmp_path, cluster, "cache")
        project.environment["EPBUILD_SIGNING_KEY"] = cluster.key.text
        process = start(project, "run", "--json", "--remote-cache", "write", *on(cluster))
        wait_until(lambda: compilers(cluster), PATIENCE, "a compile")
        server.faults.append(Fault("status", status=503))
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 3, output + errors
        assert "could not be written to the remote cache" in output
        assert "Traceback" not in errors
        server.faults.clear()
        code, events, text = run(project, cluster, "--remote-cache", "write")
        assert code == 0, text
        made = [step for step, (outcome, _) in outcomes(events).items() if outcome == "restored" and step in COMPILES]
        assert len(made) == 1, events


def test_actions_that_no_worker_offers_any_more_fail_and_others_finish(own: Cluster, tmp_path: Path) -> None:
    project = slow_project(tmp_path, own, "nobody")
    python = toolchain_python("onnxruntime-qnn")
    project.edit("toolchains:\n", f"toolchains:\n  own: {{interpreter: '{python}'}}\n")
    target = "  own: {toolchain: own, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}\n"
    project.edit("targets:\n", f"targets:\n{target}")
    project.edit("right: {models: [right], targets: [npu]}", "right: {models: [right], targets: [own]}")
    process = start(project, "run", "--json", *on(own))
    wait_until(lambda: compilers(own), PATIENCE, "a compile")
    own.workers[0].kill()
    output, errors = process.communicate(timeout=PATIENCE + 60)
    events = events_of(output)
    assert (process.returncode, failures(events)) == (3, {LEFT: ["EPB539"]}), output + errors
    assert "no machine is connected" in output
    assert "(needed by 1 action)" in output
    assert outcomes(events)["compile:right/own/right"] == ("built", None)

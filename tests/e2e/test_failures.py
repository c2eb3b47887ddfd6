"""Steps that fail: reported with the EP's own reason, without harm to other results or leftover files."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import COMMAND_SECONDS, Project, compiled
from tests.support.quick_builds import start

RECIPE = """
epbuild: 1
name: failures
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models:
  good: good.onnx
  bad: bad.onnx
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}
groups:
  bad: {models: [bad], targets: [npu]}
  good: {models: [good], targets: [npu]}
outputs:
  - {layout: directory, path: "dist/${group}"}
"""


def _matmul(path: Path, seed: int = 0) -> None:
    weights = numpy.random.default_rng(seed).standard_normal((64, 64)).astype(numpy.float32)
    _save(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        TensorProto.FLOAT,
        [numpy_helper.from_array(weights, "w")],
    )


def _write_without_npu_nodes(path: Path) -> None:
    # Double precision in and out, which QNN does not support.
    _save(path, [helper.make_node("Erf", ["x"], ["y"], name="erf")], TensorProto.DOUBLE, [])


def _save(path: Path, nodes: list[onnx.NodeProto], kind: int, weights: list[onnx.TensorProto]) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", kind, [1, 64])], [value("y", kind, [1, 64])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def two_groups(project: Project) -> Project:
    _matmul(project.folder / "good.onnx")
    _matmul(project.folder / "bad.onnx", seed=1)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def test_a_model_without_nodes_for_the_ep_fails_without_affecting_others(two_groups: Project) -> None:
    two_groups.build()
    before = two_groups.files()
    _write_without_npu_nodes(two_groups.folder / "bad.onnx")
    _matmul(two_groups.folder / "good.onnx", seed=2)
    done = two_groups.epbuild("run", "-j", "1", "--keep-going")
    assert done.returncode == 1
    assert "compile:bad/npu/bad: error: compiling 'bad' for npu failed: Unable to compile any nodes" in done.stderr
    assert "Traceback" not in done.stderr
    after = two_groups.files()
    assert {name for name in before if before[name] != after[name]} == {
        name for name in before if name.startswith("good/") and not name.endswith(".onnx")
    }
    assert before.keys() == after.keys()
    assert "compile:bad/npu/bad" in two_groups.epbuild("log").stdout


def test_a_workflow_gets_each_problem_once_as_an_annotation_and_tables_of_results(two_groups: Project) -> None:
    two_groups.edit("good: {models: [good], targets: [npu]}", "good: {models: [good, also], targets: [npu]}")
    two_groups.edit("  bad: bad.onnx", "  bad: bad.onnx\n  also: also.onnx")
    for name in ("bad.onnx", "also.onnx"):
        _write_without_npu_nodes(two_groups.folder / name)
    summary = two_groups.folder / "summary.md"
    two_groups.environment |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "FORCE_COLOR": "1"}
    done = two_groups.epbuild("run", "--keep-going")
    assert done.returncode == 1
    annotations = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    assert len(annotations) == (done.stdout + done.stderr).count("Unable to compile any nodes") == 2
    assert (
        "::error file=epbuild.yaml,line=16,title=compile%3Abad/npu/bad::compiling 'bad' for npu failed: Unable to compile any nodes"
        in done.stderr
    )
    assert "\x1b[31mfailed\x1b[0m" in done.stdout
    text = summary.read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if "Unable to compile any nodes" in line]
    assert row.endswith(
        ("| `compile:bad/npu/bad`<br>`compile:good/npu/also` |", "| `compile:good/npu/also`<br>`compile:bad/npu/bad` |")
    )
    assert "\x1b" not in text

    two_groups.edit("soc_model: SM8750", "soc_modell: SM8750")
    done = two_groups.epbuild("run")
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("soc_modell'") == 1
    assert "::error file=" in done.stderr
    assert "soc_modell" in summary.read_text(encoding="utf-8")


def test_keep_going_ends_with_each_reason_once_and_the_result_sizes(two_groups: Project) -> None:
    _write_without_npu_nodes(two_groups.folder / "bad.onnx")
    done = two_groups.epbuild("run", "--keep-going")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "[1/4] " in done.stdout
    assert "[4/4] " in done.stdout
    assert next(line for line in lines if line.startswith("Size: ")).endswith(" in 1 new output.")
    listed = lines[lines.index("Failed: 1 step, for 1 reason") :]
    assert " ".join(listed).count("Unable to compile any nodes") == 1
    assert "  compile:bad/npu/bad" in listed


def test_a_nonexistent_soc_fails_with_the_eps_own_reason_and_no_trace_in_the_store(two_groups: Project) -> None:
    two_groups.edit("soc_model: SM8750}", "soc_model: 9999}\n    allow_unknown_options: true")
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert done.stderr.count("QNN_DEVICE_ERROR_INVALID_CONFIG") == 1
    assert ".epbuild/logs/compile+good+npu+good.log" in done.stderr
    assert not (two_groups.folder / "dist").exists()
    kept = [path.relative_to(two_groups.cache).parts[0] for path in two_groups.cache.rglob("*") if path.is_file()]
    assert set(kept) <= {
        "leases",
        "looks",
        "roots",
        "CACHEDIR.TAG",
        "workspace.key",
    }  # locks, snapshots, the workspaces that use the store, the key that proves their owner, and the folder's own marker
    assert not list((two_groups.folder / ".epbuild/tmp").glob("*"))


def test_a_soc_name_that_the_ep_does_not_understand_is_caught_in_the_binary(two_groups: Project) -> None:
    # The EP only warns, compiles for some other SoC, and reports success.
    options = "soc_model: SM9999, enable_htp_fp16_precision: false}\n    allow_unknown_options: true"
    two_groups.edit("soc_model: SM8750}", options)
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert "not for SM9999" in done.stderr
    assert "Unrecognized soc_model 'SM9999'" in done.stderr
    assert not (two_groups.folder / "dist").exists()


def test_without_keep_going_no_step_starts_after_a_failure(two_groups: Project) -> None:
    path = two_groups.folder / "bad.onnx"
    _write_without_npu_nodes(path)
    model = onnx.load(path)
    model.doc_string = "x" * 1_000_000  # the larger model is started first
    onnx.save(model, path)
    done = two_groups.epbuild("run", "-j", "1", "--json")
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert next(event["step"] for event in events if event["event"] == "step_started") == "compile:bad/npu/bad"
    failure = next(number for number, event in enumerate(events) if event["event"] == "step_failed")
    assert {event["event"] for event in events[failure + 1 :]} == {"step_finished", "model_covered", "run_finished"}
    assert {event["step"]: event["outcome"] for event in events if event["event"] == "step_finished"} == dict.fromkeys(
        ("emit:bad/npu/directory", "compile:good/npu/good", "emit:good/npu/directory"), "skipped"
    )


def test_an_unmet_expectation_fails_the_step_without_another_compile(two_groups: Project) -> None:
    two_groups.build()
    two_groups.edit(
        "good: {models: [good], targets: [npu]}", "good: {models: [good], targets: [npu], expect: {ep_context_nodes: 7}}"
    )
    [log] = (two_groups.folder / ".epbuild/logs").glob("*good*npu*good.log")
    begin = log.stat().st_mtime_ns
    done = two_groups.epbuild("run")
    assert done.returncode == 1
    assert "was compiled to 1 EPContext nodes; the recipe expects 7" in done.stderr
    assert log.stat().st_mtime_ns == begin


def test_a_worker_that_hangs_is_stopped_at_its_timeout(two_groups: Project) -> None:
    two_groups.edit("good: {models: [good], targets: [npu]}", "good: {models: [good], targets: [npu], timeout: 0.05}")
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert "did not finish within 0.05 s" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")
@pytest.mark.parametrize("kill", ["SIGINT", "SIGKILL"])
def test_a_stopped_build_leaves_no_worker_and_keeps_finished_results(two_groups: Project, kill: str) -> None:
    # Without folded ConstantOfShape nodes, this model splits into 120 parts and takes minutes.
    two_groups.edit("  bad: bad.onnx", "  bad: package:onnx/backend/test/data/light/light_densenet121.onnx")
    build = start(two_groups, "run")
    _wait_until(lambda: (two_groups.folder / "dist/good/manifest.json").exists() and bool(_children(build.pid)))
    workers = _children(build.pid)
    build.send_signal(getattr(signal, kill))
    begin = time.monotonic()
    _, told = build.communicate(timeout=30)
    assert time.monotonic() - begin < 5
    if kill == "SIGINT":
        assert build.returncode == 130
        assert "interrupted" in told
        assert not list((two_groups.folder / ".epbuild/tmp").glob("*"))
    _wait_until(lambda: not any(_alive(pid) for pid in workers))
    assert not (two_groups.folder / "dist/bad").exists()
    two_groups.edit("  bad: package:onnx/backend/test/data/light/light_densenet121.onnx", "  bad: bad.onnx")
    assert compiled(two_groups.build()) == {"compile:bad/npu/bad"}
    assert not list((two_groups.folder / ".epbuild/tmp").glob("*"))


def test_two_concurrent_builds_compile_each_step_once(two_groups: Project) -> None:
    builds = [start(two_groups, "run", "--json") for _ in range(2)]
    events = [[json.loads(line) for line in build.communicate(timeout=COMMAND_SECONDS)[0].splitlines()] for build in builds]
    assert [build.returncode for build in builds] == [0, 0]
    steps = [step for one in events for step in compiled(one)]
    assert sorted(steps) == ["compile:bad/npu/bad", "compile:good/npu/good"]
    assert two_groups.epbuild("run", "--check").returncode == 0


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"

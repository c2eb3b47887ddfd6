"""A step that fails is told with the EP's own reason, costs nobody else their result, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import onnx
import pytest
from conftest import Project
from onnx import TensorProto, helper, numpy_helper

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


def _nothing_for_the_npu(path: Path) -> None:
    # Double precision in and out: QNN takes none of it.
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


def test_a_model_with_nothing_for_the_ep_fails_and_spares_the_rest(two_groups: Project) -> None:
    two_groups.build()
    before = two_groups.files()
    _nothing_for_the_npu(two_groups.folder / "bad.onnx")
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


def test_a_soc_that_does_not_exist_fails_with_the_eps_own_reason_and_no_trace_in_the_store(two_groups: Project) -> None:
    two_groups.edit("soc_model: SM8750", "soc_model: 9999")
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert "QNN_DEVICE_ERROR_INVALID_CONFIG" in done.stderr
    assert not (two_groups.folder / "dist").exists()
    assert not [path for path in two_groups.cache.rglob("*") if path.is_file() and "leases" not in path.parts]
    assert not list((two_groups.folder / ".epbuild/tmp").glob("*"))


def test_a_soc_name_that_the_ep_does_not_understand_is_caught_in_the_binary(two_groups: Project) -> None:
    # The EP only warns, compiles for some other SoC, and reports success.
    two_groups.edit("soc_model: SM8750", "soc_model: SM9999, enable_htp_fp16_precision: false")
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert "not for SM9999" in done.stderr
    assert "Unrecognized soc_model 'SM9999'" in done.stderr
    assert not (two_groups.folder / "dist").exists()


def test_without_keep_going_nothing_is_started_after_a_failure(two_groups: Project) -> None:
    _nothing_for_the_npu(two_groups.folder / "bad.onnx")
    two_groups.epbuild("run", "-j", "1")
    again = two_groups.epbuild("run", "-j", "1", "epbuild.yaml", "emit:bad/*")
    assert again.returncode == 1
    assert "skipped   emit:bad/npu/directory" in again.stdout


def test_an_expectation_that_is_not_met_fails_the_step_without_another_compile(two_groups: Project) -> None:
    two_groups.build()
    two_groups.edit(
        "good: {models: [good], targets: [npu]}", "good: {models: [good], targets: [npu], expect: {ep_context_nodes: 7}}"
    )
    [log] = (two_groups.folder / ".epbuild/logs").glob("*good*npu*good.log")
    begin = log.stat().st_mtime_ns
    done = two_groups.epbuild("run")
    assert done.returncode == 1
    assert "became 1 EPContext nodes; the recipe expects 7" in done.stderr
    assert log.stat().st_mtime_ns == begin


def test_a_worker_that_hangs_is_stopped_at_its_timeout(two_groups: Project) -> None:
    two_groups.edit("good: {models: [good], targets: [npu]}", "good: {models: [good], targets: [npu], timeout: 0.05}")
    done = two_groups.epbuild("run", "epbuild.yaml", "emit:good/*")
    assert done.returncode == 1
    assert "did not end within 0.05 s" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends the interrupt as a POSIX signal")
def test_an_interrupt_ends_the_build_at_once_and_leaves_no_worker(two_groups: Project) -> None:
    # Without folding its ConstantOfShape nodes, this model falls into 120 parts and takes minutes.
    two_groups.edit("  good: good.onnx", "  good: package:onnx/backend/test/data/light/light_densenet121.onnx")
    command, environment = two_groups.command("run", "epbuild.yaml", "emit:good/*")
    build = subprocess.Popen(
        command, cwd=two_groups.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_until(lambda: list((two_groups.folder / ".epbuild/tmp").glob("*/request.json")), 60)
    workers = _children(build.pid)
    assert workers
    build.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, told = build.communicate(timeout=30)
    assert time.monotonic() - begin < 5
    assert build.returncode == 130
    assert "interrupted" in told
    assert not [pid for pid in workers if _alive(pid)]
    assert not list((two_groups.folder / ".epbuild/tmp").glob("*"))


def _wait_until(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if callable(condition) and condition():
            time.sleep(0.5)  # the request is written before the worker is started
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


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
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

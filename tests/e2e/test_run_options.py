"""Run options and LoRA adapters: outputs contain them, and applications run real models with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import RECIPES, Project, toolchain_python

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

RECIPE = """\
epbuild: 1
name: lora
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {npu: npu.onnx, cpu: cpu.onnx}
targets:
  phone:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}
groups:
  main:
    models: [{model: npu, compile: {embed: true, graph_optimization_level: disable_all}}, {model: cpu, compile: none}]
    targets: [phone]
outputs:
  - {layout: directory, path: dist/folder}
  - {layout: ort-model-package, path: dist/package}
"""
OPTIONS = """\
    session_options: {session.disable_model_compile: true}
    run_options: {qnn.htp_perf_mode: burst, qnn.rpc_control_latency: 100}
groups:
"""
MAKE = """
import sys, numpy, onnxruntime
adapter = onnxruntime.AdapterFormat()
adapter.set_adapter_version(1)
adapter.set_model_version(1)
ones = {"a": numpy.ones((4, 2), "float32"), "b": numpy.ones((2, 4), "float32")}
adapter.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in ones.items()})
adapter.export_adapter(sys.argv[1])
"""
RUN = """
import gc, sys, numpy, onnxruntime
import epbuild.runtime

x = numpy.arange(4, dtype="float32")[None]
with epbuild.runtime.open(sys.argv[1]) as group:
    base, tuned = group.run_options(), group.run_options("ones.onnx_adapter")
    gc.collect()
    assert base.get_run_config_entry("qnn.htp_perf_mode") == "burst"
    assert numpy.array_equal(group["cpu"].run(None, {"x": x}, base)[0], x)
    assert numpy.array_equal(group["cpu"].run(None, {"x": x}, tuned)[0], x + 12)
    file = group.variant.adapters["ones.onnx_adapter"]
    parameters = onnxruntime.AdapterFormat.read_adapter(str(file)).get_parameters()
    assert numpy.allclose(group["npu"].run(None, {"x": x, **parameters}, base)[0], x + 12, atol=0.01)
    (ep,) = group.variant.eps
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == ep.name)
    for key, value in group.variant.session_options.items():
        (options := onnxruntime.SessionOptions()).add_session_config_entry(key, value)
    options.add_provider_for_devices([device], dict(ep.provider_options))
try:
    onnxruntime.InferenceSession(sys.argv[2], options, enable_fallback=0)
except Exception as error:
    assert "User disabled EP compilation" in str(error), error
    print("refused")
"""


def save_model(path: Path, *, optional: bool) -> None:
    """Write a model that adds x @ a @ b to x. With `optional`, a and b default to zeros."""
    shapes = {"x": [1, 4], "a": [4, 2], "b": [2, 4], "y": [1, 4]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"], name="down"),
        helper.make_node("MatMul", ["h", "b"], ["u"], name="up"),
        helper.make_node("Add", ["x", "u"], ["y"], name="add"),
    ]
    zeros = [numpy_helper.from_array(numpy.zeros(shapes[name], numpy.float32), name) for name in ("a", "b")] if optional else []
    graph = helper.make_graph(nodes, "lora", [values[name] for name in ("x", "a", "b")], [values["y"]], zeros)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def run_script(script: str, *arguments: Path) -> str:
    done = subprocess.run(
        [toolchain_python("onnxruntime-qnn"), "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(RECIPES.parent)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_options_and_adapters_reach_applications_without_a_new_compile(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", tmp_path / "cache")
    project.folder.mkdir()
    save_model(project.folder / "npu.onnx", optional=False)
    save_model(project.folder / "cpu.onnx", optional=True)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    folder, package = project.folder / "dist/folder", project.folder / "dist/package"
    before = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    run_script(MAKE, project.folder / "ones.onnx_adapter")
    project.edit("groups:\n", OPTIONS)
    project.edit("    targets: [phone]\n", "    targets: [phone]\n    adapters: [ones.onnx_adapter]\n")
    started = [event["step"] for event in project.build() if event["event"] == "step_started"]
    assert [step for step in started if not step.startswith("emit:")] == []

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert [model["action_key"] for model in manifest["models"]] == [model["action_key"] for model in before["models"]]
    assert manifest["target"]["run_options"] == {"qnn.htp_perf_mode": "burst", "qnn.rpc_control_latency": "100"}
    assert [file["path"] for file in manifest["files"] if file["role"] == "adapter"] == ["ones.onnx_adapter"]
    components = json.loads((package / "manifest.json").read_text(encoding="utf-8"))["components"]
    described = components["npu"]["variants"]["phone"]["additional_metadata"]["epbuild"]
    assert (described["adapters"], described["run_options"]) == (["ones.onnx_adapter"], manifest["target"]["run_options"])
    assert "refused" in run_script(RUN, folder, project.folder / "npu.onnx")

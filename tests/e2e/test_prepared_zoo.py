"""Real preparations before real compiles: quantized models run completely on the NPU.

A model that fails does not delay the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import RECIPES, Project, compiled, emitted

RECIPE = """
epbuild: 1
name: zoo
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
  tools: {packages: [onnxruntime==1.31.1, onnx==1.23.2, onnxslim==0.1.98, sympy==1.14.0]}
models:
  good:
    path: good.onnx
    prepare:
      - {simplify: {model_check: true}, toolchain: tools}
      - {quantize: {calibration: samples/*.npz, weight_type: int8}, toolchain: tools}
  odd: odd.onnx
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750, offload_graph_io_quantization: 0}
groups:
  zoo:
    models: [good, odd]
    targets: [npu]
    separate: true
    allow_failure: true
outputs:
  - {layout: directory, path: "dist/${group}"}
"""
ODD = "compile:zoo-odd/npu/odd"


@pytest.fixture
def zoo(project: Project) -> Project:
    (project.folder / "good.onnx").write_bytes((RECIPES / "models/classifier/classifier.onnx").read_bytes())
    header = onnx.load(project.folder / "good.onnx", load_external_data=False)
    draw = numpy.random.default_rng(0)
    (project.folder / "samples").mkdir()
    for number in range(2):
        arrays = {
            value.name: draw.random([dim.dim_value for dim in value.type.tensor_type.shape.dim], dtype=numpy.float32)
            for value in header.graph.input
        }
        numpy.savez(project.folder / f"samples/{number}.npz", **arrays)  # type: ignore[arg-type]
    _write_without_npu_nodes(project.folder / "odd.onnx")
    project.recipe.write_text(RECIPE, encoding="utf-8")
    return project


def _write_without_npu_nodes(path: Path) -> None:
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(numpy.ones((4, 4)), "w")]
    ends = [value(name, TensorProto.DOUBLE, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "mm")], "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.gate
def test_models_compile_fully_when_quantized_and_failures_are_tried_once(zoo: Project) -> None:
    events = zoo.build()
    assert compiled(events) == {"prepare:good/1-simplify", "prepare:good/2-quantize", "compile:zoo-good/npu/good"}
    assert emitted(events) == {"emit:zoo-good/npu/directory"}
    nodes = onnx.load(zoo.folder / "dist/zoo-good/good_ctx.onnx", load_external_data=False).graph.node
    assert [node.op_type for node in nodes] == ["EPContext"]
    assert not (zoo.folder / "dist/zoo-odd").exists()
    [failed] = [event for event in events if event["event"] == "step_failed"]
    assert (failed["step"], failed["allowed"], failed["remembered"]) == (ODD, True, False)

    [again] = [event for event in zoo.build() if event["event"] == "step_failed"]
    assert again["remembered"]
    assert again["problems"][0]["message"] == failed["problems"][0]["message"]
    assert zoo.epbuild("run", "--check").returncode == 0
    assert f"failed  {ODD}\n" in zoo.epbuild("plan").stdout

    [retried] = [event for event in zoo.build("--retry") if event["event"] == "step_failed"]
    assert not retried["remembered"]

    zoo.edit("    allow_failure: true\n", "")
    assert zoo.epbuild("run").returncode == 1
    assert zoo.epbuild("run", "--check").returncode == 1

"""Quantized decoders compute what their sources do: the nodes of RMSNorm stay in float."""

from __future__ import annotations

from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project

pytestmark = pytest.mark.gate

SIZE, LAYERS = 64, 2
RECIPE = """\
epbuild: 1
name: norms
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
  tools: {packages: [onnxruntime==1.31.1, onnx==1.23.2, sympy==1.14.0]}
models:
  model:
    path: model.onnx
    prepare: [{quantize: {calibration: samples/*.npz, activation_type: uint16 MORE}, toolchain: tools}]
targets:
  npu: {ep: qnn, toolchain: qnn, soc: SM8750, provider_options: {offload_graph_io_quantization: 0}}
groups:
  model: {verify: {data: samples/*.npz}}
"""


def write_layers(path: Path) -> None:
    """Write two layers of RMSNorm, product and residual, as torch exports them. Their nodes have no names."""
    draw = numpy.random.default_rng(0)
    constants = {"two": numpy.float32(2), "axes": numpy.array([-1], numpy.int64), "epsilon": numpy.float32(1e-5)}
    nodes, last = [], "x"
    for layer in "ab":
        constants[f"{layer}_gain"] = draw.normal(1, 0.1, SIZE).astype(numpy.float32)
        constants[f"{layer}_weight"] = draw.normal(0, SIZE**-0.5, (SIZE, SIZE)).astype(numpy.float32)
        nodes += [
            helper.make_node("Pow", [last, "two"], [f"{layer}_squares"]),
            helper.make_node("ReduceMean", [f"{layer}_squares", "axes"], [f"{layer}_mean"], keepdims=1),
            helper.make_node("Add", [f"{layer}_mean", "epsilon"], [f"{layer}_shifted"]),
            helper.make_node("Sqrt", [f"{layer}_shifted"], [f"{layer}_root"]),
            helper.make_node("Reciprocal", [f"{layer}_root"], [f"{layer}_inverse"]),
            helper.make_node("Mul", [last, f"{layer}_inverse"], [f"{layer}_normal"]),
            helper.make_node("Mul", [f"{layer}_normal", f"{layer}_gain"], [f"{layer}_scaled"]),
            helper.make_node("MatMul", [f"{layer}_scaled", f"{layer}_weight"], [f"{layer}_product"]),
            helper.make_node("Add", [f"{layer}_product", last], [f"{layer}_sum"]),
        ]
        last = f"{layer}_sum"
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, SIZE])] for name in ("x", last)]
    tensors = [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "layers", *ends, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.mark.parametrize(
    ("more", "code", "state"),
    [("", 0, "preparations 40"), (", float_norms: false", 1, "most of the difference comes from the EP")],
)
def test_a_norm_computes_noise_on_the_npu_unless_kept_in_float(project: Project, more: str, code: int, state: str) -> None:
    write_layers(project.folder / "model.onnx")
    (project.folder / "samples").mkdir()
    for number in range(4):
        x = numpy.random.default_rng(number).normal(0, 0.02, (1, 8, SIZE)).astype(numpy.float32)
        numpy.savez(project.folder / f"samples/{number}.npz", x=x)
    project.recipe.write_text(RECIPE.replace(" MORE", more), encoding="utf-8")
    done = project.epbuild("run")
    assert done.returncode == code, done.stdout + done.stderr
    assert state in done.stdout + done.stderr
    assert (project.folder / "dist/norms/model/npu/manifest.json").is_file() is (code == 0)

"""Sizes of QNN's spill-fill buffers in a sharing group."""

from __future__ import annotations

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epbuild.onnxfile.read.headers import read_header
from tests.support.projects import Project
from tests.support.quick_builds import write_model

RECIPE = """\
epbuild: 1
name: spill
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {small: small.onnx, large: large.onnx}
targets:
  npu: {toolchain: qnn, ep: qnn, soc: SM8750, provider_options: {enable_htp_spill_fill_buffer: true}}
groups:
  both: {models: [small, large], targets: [npu], share_weights: true}
outputs:
  - {layout: directory, path: dist}
"""


def write_attention(project: Project, rows: int, size: int) -> None:
    """Write a model whose attention scores exceed the NPU's own memory."""
    value, node = helper.make_tensor_value_info, helper.make_node
    random = numpy.random.default_rng(0)
    graph = helper.make_graph(
        [
            *(node("MatMul", ["x", f"{name}_w"], [name], name=name) for name in ("query", "key", "value")),
            node("Transpose", ["key"], ["turned"], name="turned", perm=[1, 0]),
            node("MatMul", ["query", "turned"], ["scores"], name="scores"),
            node("Softmax", ["scores"], ["shares"], name="shares"),
            node("MatMul", ["shares", "value"], ["y"], name="y"),
        ],
        "attention",
        [value("x", TensorProto.FLOAT, [rows, size])],
        [value("y", TensorProto.FLOAT, [rows, size])],
        [
            numpy_helper.from_array(random.normal(0, 0.1, (size, size)).astype(numpy.float32), f"{name}_w")
            for name in ("query", "key", "value")
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), project.folder / "large.onnx")


@pytest.mark.exhaustive
def test_each_model_of_a_group_has_the_size_of_the_whole_context(project: Project) -> None:
    write_model(project.folder / "small.onnx", 0)
    write_attention(project, 2048, 512)
    project.recipe.write_text(RECIPE, encoding="utf-8")
    project.build()
    sizes = {
        node.max_size
        for name in ("small", "large")
        for node in read_header(project.folder / f"dist/{name}_ctx.onnx").ep_context_nodes
    }
    assert len(sizes) == 1
    assert sizes.pop() > 1_000_000
    done = project.epbuild("verify", "dist")
    assert done.returncode == 0, done.stdout + done.stderr

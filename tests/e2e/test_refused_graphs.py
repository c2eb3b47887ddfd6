"""Graphs that the real QNN EP refuses: the reason blames the graph, not this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.projects import Project, failures_of

RECIPE = """\
epbuild: 1
name: refused
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {MODELS}
targets:
  npu: {toolchain: qnn, ep: QNNExecutionProvider, provider_options: {backend_type: htp, soc_model: SM8750}}
groups:
  each: {separate: true, models: ["*"], targets: [npu]}
outputs:
  - {layout: directory, path: "dist/${group}"}
"""


def write_norm(path: Path, *scaling: str) -> None:
    """Write RMSNorm as torch's exporter does, with these inputs of its last Mul."""
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["shifted"]),
        helper.make_node("Sqrt", ["shifted"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["scale"]),
        helper.make_node("Mul", ["x", "scale"], ["normal"]),
        helper.make_node("Mul", list(scaling), ["y"]),
    ]
    constants = {
        "two": numpy.float32(2),
        "axes": numpy.array([-1], numpy.int64),
        "epsilon": numpy.float32(1e-5),
        "weight": numpy.ones(512, numpy.float32),
    }
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 512])] for name in ("x", "y")]
    tensors = [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "norm", *ends, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def write_graph(path: Path, nodes: list[Any], constants: Mapping[str, Any], inputs: Mapping[str, tuple[int, list[Any]]]) -> None:
    """Write a model with one output of floats, `y`, of two open dimensions."""
    tensors = [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()]
    takes = [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()]
    gives = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["frames", "channels"])]
    graph = helper.make_graph(nodes, "graph", takes, gives, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def failures(project: Project, models: str) -> list[str]:
    """Build models of which some have to fail, and return the errors."""
    project.recipe.write_text(RECIPE.replace("{MODELS}", models), encoding="utf-8")
    done = project.epbuild("run", "--keep-going", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    return failures_of(done.stdout)


def test_a_norm_that_exceeds_qnn_memory_compiles_when_rewritten(project: Project) -> None:
    write_norm(project.folder / "first.onnx", "weight", "normal")
    write_norm(project.folder / "last.onnx", "normal", "weight")
    rewritten = "{path: first.onnx, prepare: [{rewrite: qnn}]}"
    [told] = failures(project, f"{{first: first.onnx, last: last.onnx, rewritten: {rewritten}}}")
    assert (project.folder / "dist/each-last/manifest.json").is_file()
    assert (project.folder / "dist/each-rewritten/manifest.json").is_file()
    assert told.startswith("compile:each-first/npu/first: error: compiling 'first' for npu failed: Failed to finalize QNN graph.")
    assert "QNN_COMMON_ERROR_MEM_ALLOC" in told
    assert "MB, so memory did not run out: the EP rejected the graph." in told
    assert "The model contains an RMSNorm whose weight is the first factor, as torch.onnx.export writes it." in told
    assert "Add `{rewrite: qnn}` to the model's 'prepare'." in told
    assert "quantize" not in told
    assert "-j" not in told
    assert told.endswith("[EPB401]")


def test_init_writes_the_rewrite_that_a_model_needs(project: Project) -> None:
    project.recipe.unlink(missing_ok=True)
    write_norm(project.folder / "first.onnx", "weight", "normal")
    written = project.epbuild("init", "first.onnx", "--ep", "qnn", "--target", "SM8750", "--output", project.recipe.name)
    assert written.returncode == 0, written.stderr
    text = project.recipe.read_text(encoding="utf-8")
    assert "prepare: [{rewrite: qnn}]" in text
    project.recipe.write_text(text.replace("verify: true", "expect: {fallback_nodes: 0}"), encoding="utf-8")
    done = project.epbuild("run")
    assert done.returncode == 0, done.stdout + done.stderr


def write_dynamic(path: Path) -> None:
    """Write a dynamically quantized LSTM, and a product that is added to its input."""
    draw = numpy.random.default_rng(0)
    lstm = ["x", "w", "r", "", "", "", "", "", "scale", "zero", "scale", "zero"]
    nodes = [
        helper.make_node("DynamicQuantizeLSTM", lstm, ["h"], name="/LSTM", domain="com.microsoft", hidden_size=16),
        helper.make_node("Squeeze", ["h", "one"], ["s"], name="/Squeeze"),
        helper.make_node("DynamicQuantizeLinear", ["s"], ["q", "q_scale", "q_zero"], name="/Quantize"),
        helper.make_node("MatMulInteger", ["q", "v", "q_zero", "zero"], ["i"], name="/MatMul"),
        helper.make_node("Cast", ["i"], ["c"], name="/Cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["q_scale", "scale"], ["both"], name="/Mul"),
        helper.make_node("Mul", ["c", "both"], ["m"], name="/Mul_1"),
        helper.make_node("Add", ["m", "s"], ["y"], name="/Add"),
    ]
    weights = {name: draw.integers(-127, 127, size) for name, size in (("w", (1, 8, 64)), ("r", (1, 16, 64)), ("v", (16, 16)))}
    constants: dict[str, Any] = {name: array.astype(numpy.int8) for name, array in weights.items()}
    constants |= {"scale": numpy.array([0.01], numpy.float32), "zero": numpy.array([0], numpy.int8), "one": numpy.array([1])}
    ends = [[helper.make_tensor_value_info(*value)] for value in (("x", 1, [3, 1, 8]), ("y", 1, [3, 1, 16]))]
    tensors = [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "dynamic", *ends, tensors), opset_imports=opsets, ir_version=10), path)


def test_init_dequantizes_a_model_that_qnn_does_not_support(project: Project) -> None:
    write_dynamic(project.folder / "voice.onnx")
    project.recipe.write_text(RECIPE.replace("{MODELS}", "{voice: voice.onnx}"), encoding="utf-8")
    warned = project.epbuild("validate")
    assert (
        "warning: the model 'voice' has 2 dynamically quantized nodes (1 MatMulInteger, 1 DynamicQuantizeLSTM), " in warned.stderr
    )
    project.recipe.unlink()
    written = project.epbuild("init", "voice.onnx", "--ep", "qnn", "--target", "SM8750", "--output", project.recipe.name)
    assert written.returncode == 0, written.stderr
    assert "prepare: [{dequantize: {}}]" in project.recipe.read_text(encoding="utf-8")
    done = project.epbuild("run")  # QNN has to support every node, and the outputs have to agree
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EPB266" not in done.stderr


def test_data_dependent_sizes_are_reported_with_the_node_where_they_begin(project: Project) -> None:
    # As in a VITS voice, whose durations determine the number of frames.
    voice = [
        helper.make_node("Relu", ["x"], ["durations"], name="/Relu"),
        helper.make_node("ReduceSum", ["durations"], ["total"], name="/ReduceSum", keepdims=0),
        helper.make_node("Cast", ["total"], ["length"], name="/Cast", to=TensorProto.INT64),
        helper.make_node("Range", ["zero", "length", "one"], ["frames"], name="/Range"),
        helper.make_node("Cast", ["frames"], ["numbers"], name="/Cast_1", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "one_axis"], ["column"], name="/Unsqueeze"),
        helper.make_node("MatMul", ["column", "row"], ["y"], name="/MatMul"),
    ]
    constants = {
        "zero": numpy.int64(0),
        "one": numpy.int64(1),
        "one_axis": numpy.array([1], numpy.int64),
        "row": numpy.ones((1, 8), numpy.float32),
    }
    write_graph(project.folder / "voice.onnx", voice, constants, {"x": (TensorProto.FLOAT, ["words", 16])})
    [told] = failures(project, "{voice: {path: voice.onnx, input_shapes: {x: [4, 16]}}}")
    assert "of the model 'voice': " in told
    assert "depend on the data, and no size in the recipe fixes them" in told
    assert "The first such node is Range '/Range'." in told
    assert "Set a size for every open dimension" not in told


def test_an_if_with_branches_of_different_sizes_is_reported(project: Project) -> None:
    # As in silero VAD, which has a branch for each of two sampling rates.
    branches = {}
    for name, rows in (("then_branch", 8), ("else_branch", 16)):
        weight = numpy_helper.from_array(numpy.ones((rows, 4), numpy.float32), f"{name}_weight")
        product = helper.make_node("MatMul", ["x", f"{name}_weight"], [name], name=f"/{name}/MatMul")
        gives = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        branches[name] = helper.make_graph([product], name, [], gives, [weight])
    nodes = [
        helper.make_node("Equal", ["rate", "sixteen"], ["condition"], name="/Equal"),
        helper.make_node("If", ["condition"], ["y"], name="/If", **branches),
    ]
    inputs = {"x": (TensorProto.FLOAT, ["batch", "samples"]), "rate": (TensorProto.INT64, [])}
    write_graph(project.folder / "speech.onnx", nodes, {"sixteen": numpy.int64(16000)}, inputs)
    [told] = failures(project, "{speech: {path: speech.onnx, input_shapes: {x: [1, 16]}}}")
    assert "If the branches need different sizes, no size fits all of them" in told
    assert "silero_vad_16k_op15.onnx" in told
    assert "Change them in the recipe" not in told

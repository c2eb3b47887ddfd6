"""Models that QNN compiles completely, partly or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, nodes: list[onnx.NodeProto], **weights: np.ndarray) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy"]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, path.stem, values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_models(folder: Path) -> None:
    """Write three models: one that QNN compiles completely, and two that it compiles partly.

    QNN skips the quantization nodes of one by default. The other has an unsupported node between supported ones.
    """
    random = np.random.default_rng(3)
    weights = random.standard_normal((8, 8)).astype(np.float32)
    multiply = helper.make_node("MatMul", ["x", "w"], ["p"], "multiply")
    save(folder / "whole.onnx", [multiply, helper.make_node("Relu", ["p"], ["y"], "relu")], w=weights)
    remainder = helper.make_node("Mod", ["p", "p"], ["m"], "remainder", fmod=1)
    save(folder / "mixed.onnx", [multiply, remainder, helper.make_node("MatMul", ["m", "w"], ["y"], "again")], w=weights)
    scales = {"s": np.float32(0.02), "z": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q_in"),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "dq_in"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"], "dq_w"),
        helper.make_node("MatMul", ["xd", "wd"], ["c"], "multiply"),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"], "q_out"),
        helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"], "dq_out"),
    ]
    arrays = {name: np.asarray(value) for name, value in scales.items()}
    save(folder / "quantized.onnx", nodes, w=random.integers(0, 255, (8, 8)).astype(np.uint8), **arrays)


def write_refused(path: Path) -> None:
    """Write a model of which QNN compiles no node."""
    save(path, [helper.make_node("Mod", ["x", "x"], ["y"], "remainder", fmod=1)])

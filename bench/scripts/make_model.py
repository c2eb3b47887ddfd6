"""`python make_model.py PATH SIDE`: write four MatMul + Relu layers with SIDE x SIDE float32 weights inline, the same bytes every time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

LAYERS = 4
SEQUENCE = 64


def make(side: int) -> onnx.ModelProto:
    # Raw generator words: numpy promises that they never change, which it does not promise of its distributions.
    words = np.random.PCG64(0)
    nodes, weights = [], []
    for layer in range(LAYERS):
        values = (words.random_raw(side * side) >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
        data = (values / np.float32(side**0.5)).astype("<f4").tobytes()
        weights.append(helper.make_tensor(f"w{layer}", TensorProto.FLOAT, [side, side], data, raw=True))
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"], name=f"matmul{layer}"),
            helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}"], name=f"relu{layer}"),
        ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SEQUENCE, side]) for name in ("x0", f"x{LAYERS}")]
    graph = helper.make_graph(nodes, "bench", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(make(int(sys.argv[2])).SerializeToString())

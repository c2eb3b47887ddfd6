"""`python make_model.py PATH SIDE LAYERS`: generator of a model of MatMul + Relu layers, with equal bytes in each run.

Each layer has SIDE x SIDE float32 weights inline. The script writes layer by layer, so a model may be larger than the free
memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper

SEQUENCE = 64
_MODEL_GRAPH = 7
_LENGTH_DELIMITED = 2


def write(path: Path, side: int, layers: int) -> None:
    empty = [_layer(layer, side, bytes(4 * side * side)).ByteSize() for layer in range(layers)]
    model = ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SEQUENCE, side]) for name in ("x0", f"x{layers}")]
    frame = GraphProto(name="bench", input=ends[:1], output=ends[1:])
    # Raw generator words: numpy guarantees that they never change, but not its distributions.
    words = np.random.PCG64(0)
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(_varint(_MODEL_GRAPH << 3 | _LENGTH_DELIMITED) + _varint(frame.ByteSize() + sum(empty)))
        # Fields of a message may have any order, and concatenated messages are one message.
        file.write(frame.SerializeToString())
        for layer in range(layers):
            values = (words.random_raw(side * side) >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
            file.write(_layer(layer, side, (values / np.float32(side**0.5)).astype("<f4").tobytes()).SerializeToString())


def _layer(layer: int, side: int, weights: bytes) -> GraphProto:
    return GraphProto(
        node=[
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"], name=f"matmul{layer}"),
            helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}"], name=f"relu{layer}"),
        ],
        initializer=[helper.make_tensor(f"w{layer}", TensorProto.FLOAT, [side, side], weights, raw=True)],
    )


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

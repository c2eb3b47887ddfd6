"""Program that quantizes small models with onnxruntime's quantize_dynamic, dequantizes them, and compares the outputs.

    python dequantized_models.py dequantize.py FOLDER    in a toolchain with onnxruntime and onnx

It prints a JSON object with two numbers for each model: the largest difference from the float model with the dequantized weights, and
the largest difference from the original float model, both relative to the largest output.
"""

from __future__ import annotations

import json
import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

DRAW = numpy.random.default_rng(0)
SETTINGS = {"tensor": {}, "channel": {"per_channel": True, "weight_type": QuantType.QInt8}, "reduced": {"reduce_range": True}}


def draw(*shape: int, scale: float = 1.0) -> Any:
    return (DRAW.normal(size=shape) * scale).astype("float32")


def describe_models() -> dict[str, tuple[list[Any], list[int], dict[str, Any]]]:
    """Return the nodes, the shape of the input `x`, and the constants of each model. The output is `y`."""
    node = helper.make_node
    bidirectional = {"hidden_size": 8, "direction": "bidirectional"}
    return {
        "matmul": (
            [node("MatMul", ["x", "w"], ["a"], "a"), node("Add", ["a", "b"], ["c"]), node("MatMul", ["c", "v"], ["y"], "y")],
            [2, 4, 16],
            {"w": draw(16, 32), "b": draw(32), "v": draw(32, 8)},
        ),
        "residual": (
            [node("MatMul", ["x", "w"], ["a"], "a"), node("Add", ["x", "a"], ["y"])],
            [2, 4, 16],
            {"w": draw(16, 16)},
        ),
        "conv": (
            [node("Conv", ["x", "w", "b"], ["a"], "a", pads=[1, 1, 1, 1]), node("Conv", ["a", "v"], ["y"], "y", strides=[2, 2])],
            [1, 4, 8, 8],
            {"w": draw(8, 4, 3, 3), "b": draw(8), "v": draw(8, 8, 3, 3)},
        ),
        "conv1d": ([node("Conv", ["x", "w"], ["y"], "y", group=2)], [1, 4, 16], {"w": draw(6, 2, 3)}),
        "lstm": (
            [node("LSTM", ["x", "w", "r", "b"], ["y"], "y", **bidirectional)],
            [5, 1, 12],
            {"w": draw(2, 32, 12, scale=0.3), "r": draw(2, 32, 8, scale=0.3), "b": draw(2, 64)},
        ),
        "table": (
            [
                node("Cast", ["x"], ["i"], to=TensorProto.INT64),
                node("Gather", ["w", "i"], ["g"], "g"),
                node("Transpose", ["g"], ["t"], "t", perm=[1, 0, 2]),
                node("Relu", ["t"], ["u"]),
                node("MatMul", ["u", "v"], ["y"], "y"),
            ],
            [1, 6],
            {"w": draw(3, 16), "v": draw(16, 8)},
        ),
    }


def build(nodes: list[Any], shape: list[int], constants: dict[str, Any]) -> Any:
    ends = [[helper.make_tensor_value_info(*value)] for value in (("x", 1, shape), ("y", 1, None))]
    graph = helper.make_graph(nodes, "model", *ends, [numpy_helper.from_array(item, name) for name, item in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def read_weights(quantized: Any, constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of the float model, with the values to which their quantized copies are dequantized."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    found = dict(constants)
    for name, array in constants.items():
        if f"{name}_quantized" not in tensors:
            continue
        values, scale, zero = (tensors[f"{name}_{part}"].astype("float32") for part in ("quantized", "scale", "zero_point"))
        if values.ndim == 3 and values.shape != array.shape:  # the weights of an LSTM are transposed
            values = values.transpose(0, 2, 1)
            scale, zero = (item.reshape(2, -1, 1) if item.size > 1 else item for item in (scale, zero))
        found[name] = ((values - zero) * scale).reshape(array.shape)
    return found


def compare(folder: Path, dequantize: Any, name: str, settings: Any) -> tuple[float, float]:
    nodes, shape, constants = describe_models()[name]
    paths = {kind: str(folder / f"{kind}.onnx") for kind in ("float", "dynamic", "result", "same")}
    onnx.save(build(nodes, shape, constants), paths["float"])
    quantize_dynamic(paths["float"], paths["dynamic"], **settings)
    dequantize({"source": paths["dynamic"], "output": paths["result"], "options": {}})
    onnx.checker.check_model(paths["result"], full_check=True)
    left = [node.op_type for node in onnx.load(paths["result"]).graph.node]
    assert not {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM", "DequantizeLinear"} & {*left}, (
        left
    )
    onnx.save(build(nodes, shape, read_weights(onnx.load(paths["dynamic"]), constants)), paths["same"])
    inputs = {"x": numpy.abs(draw(*shape)).clip(0, 2)}
    outputs = {}
    for kind in ("result", "same", "float"):
        session = onnxruntime.InferenceSession(paths[kind], providers=["CPUExecutionProvider"])
        outputs[kind] = session.run(None, inputs)[0]
    largest = numpy.abs(outputs["float"]).max()
    first, second = (float(numpy.abs(outputs["result"] - outputs[kind]).max() / largest) for kind in ("same", "float"))
    return first, second


def main() -> None:
    script, folder = sys.argv[1], Path(sys.argv[2])
    logging.disable(logging.WARNING)
    dequantize = runpy.run_path(script)["dequantize"]
    found = {
        f"{name} {kind}": compare(folder, dequantize, name, settings)
        for name in describe_models()
        for kind, settings in SETTINGS.items()
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

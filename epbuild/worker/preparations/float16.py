"""`float16`: conversion of float32 to float16 with onnxruntime.transformers.

This package now maintains the converter of onnxmltools.
"""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

FLOAT, FLOAT16 = 1, 10


def float16(request: dict[str, Any]) -> None:
    """Write the source with its float32 tensors as float16. Raises Refused if an option names something that does not exist."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    options = dict(request["options"])
    header = step.load_header(request)
    check_names(header, options)
    # Infer shapes without the weights, because a large model with weights exceeds the size of one protobuf message.
    infer = not options.pop("disable_shape_infer", False)
    model = step.fill(onnx.shape_inference.infer_shapes(header) if infer else header, request)
    before = count_floats(model)
    result = convert_float_to_float16(model, disable_shape_infer=True, **options)
    after = count_floats(result)
    step.log(f"weights in float32: {before[FLOAT]} -> {after[FLOAT]}, in float16: {before[FLOAT16]} -> {after[FLOAT16]}")
    values = (*result.graph.input, *result.graph.output, *result.graph.value_info)
    if after == before and not any(value.type.tensor_type.elem_type == FLOAT16 for value in values):
        raise step.Refused("nothing in the model was converted to float16", "Check 'op_block_list' and 'node_block_list'.")
    step.save(result, request)


def check_names(model: Any, options: dict[str, Any]) -> None:
    """Raise Refused if an option names nodes, inputs or outputs that do not exist, which the library ignores silently."""
    nodes = {node.name for node in model.graph.node}
    for name in options.get("node_block_list", ()):
        if name not in nodes:
            raise step.Refused(f"'node_block_list' has '{name}', which is not a node of the model", step.nearest(name, nodes))
    kept = options.get("keep_io_types")
    ends = {value.name for value in (*model.graph.input, *model.graph.output)}
    for name in kept if isinstance(kept, list) else ():
        if name not in ends:
            message = f"'keep_io_types' has '{name}', which is neither an input nor an output of the model"
            raise step.Refused(message, step.nearest(name, ends))


def count_floats(model: Any) -> dict[int, int]:
    """Return the number of weights in float32 and in float16."""
    return {kind: sum(tensor.data_type == kind for tensor in model.graph.initializer) for kind in (FLOAT, FLOAT16)}


if __name__ == "__main__":
    step.main(float16)

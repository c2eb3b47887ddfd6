"""`infer_shapes`: types and sizes of the values inside a graph, inferred by ONNX.

The option `symbolic` runs onnxruntime's symbolic inference first.
"""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

OF_SYMBOLIC = ("int_max", "auto_merge", "guess_output_rank")


def infer_shapes(request: dict[str, Any]) -> None:
    """Write the source with inferred types and sizes, without reading large external data. Raises Refused if symbolic inference fails."""
    import onnx

    options = dict(request["options"])
    symbolic = options.pop("symbolic", False)
    model = step.load_header(request)
    before = count_known(model)
    of_symbolic = {name: options.pop(name) for name in OF_SYMBOLIC if name in options}
    if symbolic:
        step.load_vectors(model, request)
        model = infer_symbolically(model, of_symbolic)
    model = onnx.shape_inference.infer_shapes(model, **options)
    of = sum(len(node.output) for node in model.graph.node)
    step.log(f"all sizes are known for {count_known(model)} of {of} values ({before} before)")
    step.save(model, request)


def infer_symbolically(model: Any, options: dict[str, Any]) -> Any:
    """Return the model with the shapes that onnxruntime's symbolic inference finds. Raises Refused if the inference fails."""
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    try:
        return SymbolicShapeInference.infer_shapes(model, **options)
    except Exception as error:
        hint = "Fix sizes with 'input_shapes' of the model, try 'auto_merge: true', or remove 'symbolic'."
        raise step.Refused(f"onnxruntime's symbolic shape inference failed for the model: {error}", hint) from error


def count_known(model: Any) -> int:
    """Return the number of values that nodes compute and whose sizes are all known."""
    made = {name for node in model.graph.node for name in node.output}
    values = {value.name: step.sizes_of(value) for value in (*model.graph.value_info, *model.graph.output)}
    return sum(
        name in made and sizes is not None and all(isinstance(size, int) for size in sizes) for name, sizes in values.items()
    )


if __name__ == "__main__":
    step.main(infer_shapes)

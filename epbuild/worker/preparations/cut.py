"""`cut`: extraction of a part of a model with onnx.utils."""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120


def cut(request: dict[str, Any]) -> None:
    """Write the part of the model between `inputs` and `outputs`. Raises Refused if this part is not a valid model."""
    import onnx

    options = request["options"]
    model = onnx.shape_inference.infer_shapes(step.load_header(request))
    outputs = options.get("outputs") or [value.name for value in model.graph.output]
    own = [value.name for value in step.required_inputs(model)]
    inputs = options.get("inputs") or own
    check_names(model, inputs, outputs)
    needed, missing = find_reached(model, inputs, outputs)
    if missing:
        hint = f"Add them to 'inputs': {', '.join(missing)}."
        raise step.Refused(f"'inputs' lacks inputs of the model that the outputs need: {', '.join(missing)}", hint)
    if "inputs" in options:
        for name in inputs:
            if name not in needed:
                raise step.Refused(f"no output needs the input '{name}'", "Remove it from 'inputs', or name other outputs.")
    else:
        inputs = [name for name in inputs if name in needed]
    if not inputs:
        raise step.Refused("the outputs depend on no input of the model: they are constants", "Name other outputs.")
    result = onnx.utils.Extractor(model).extract_model(inputs, outputs)
    step.check(step.fill(result, request))
    step.log(f"cut {step.node_count(model)} to {step.node_count(result)}")
    step.save(result, request)


def check_names(model: Any, inputs: list[str], outputs: list[str]) -> None:
    """Raise Refused if a name is not a value of the graph, or if the value's type is unknown."""
    made = {name for node in model.graph.node for name in node.output}
    given = {value.name for value in model.graph.input}
    typed = {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    for option, names, known in (("inputs", inputs, made | given), ("outputs", outputs, made)):
        for name in names:
            if name not in known:
                what = "which no node computes" if option == "outputs" else "which is not a value of the model"
                raise step.Refused(f"'{option}' has '{name}', {what}", step.nearest(name, known))
            if name not in typed:
                hint = "Add 'infer_shapes: {symbolic: true}' before this step, or cut elsewhere."
                raise step.Refused(f"the type of the value '{name}' is unknown", hint)


def find_reached(model: Any, inputs: list[str], outputs: list[str]) -> tuple[set[str], list[str]]:
    """Return which of `inputs` the outputs need, and which other inputs of the model they need."""
    maker = {name: node for node in model.graph.node for name in node.output if name}
    own = {value.name for value in step.required_inputs(model)}
    seen: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in maker and name not in inputs:
            waiting += step.list_read_values(maker[name])
    return seen & set(inputs), [name for name in sorted(own) if name in seen and name not in inputs]


if __name__ == "__main__":
    step.main(cut)

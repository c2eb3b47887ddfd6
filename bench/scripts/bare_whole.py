"""`python bare_whole.py REQUEST.json`: bare compile of one model with fixed sizes, by one EP at one optimization level.

Its Python has onnxruntime, the EP's package and onnx. onnxruntime's own `make_input_shape_fixed` fixes the sizes. The last line
of standard output is JSON: `nodes` (EPContext nodes), `left` (operators of all other nodes, counted) and `seconds`, or `error`.
Standard error is ONNX Runtime's log at severity VERBOSE, in which QNN gives the reasons for CPU fallback.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

PLUGINS = {"QNNExecutionProvider": "onnxruntime_qnn"}
VERBOSE = 0


def fix_sizes(source: str, inputs: dict[str, list[int]], fixed: str) -> None:
    """Write the model with these sizes of its inputs. Raises the errors of onnx and onnxruntime."""
    model = onnx.load(source)
    for value in model.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == "?":  # Paddle's name for an unknown size, which onnxruntime treats as one symbol
                dimension.Clear()
    for name, sizes in inputs.items():
        make_input_shape_fixed(model.graph, name, sizes)
    if inputs:
        fix_output_shapes(model)
    onnx.save(model, fixed)


def session_options(ep: str, options: dict[str, str]) -> Any:
    """Return the options of a session on this EP with verbose logging."""
    made = onnxruntime.SessionOptions()
    made.log_severity_level = VERBOSE
    if ep in PLUGINS:
        module = __import__(PLUGINS[ep])
        onnxruntime.register_execution_provider_library(ep, module.get_library_path())
        device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == ep)
        made.add_provider_for_devices([device], options)
    else:
        made.add_provider(ep, options)
    return made


def compile_model(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the model of a request, and return the outcome."""
    onnxruntime.set_default_logger_severity(VERBOSE)
    fixed, compiled = Path("source.onnx"), Path("compiled_ctx.onnx")
    fix_sizes(request["model"], request["inputs"], str(fixed))
    begin = time.perf_counter()
    compiler = onnxruntime.ModelCompiler(
        session_options(request["ep"], request["options"]),
        str(fixed),
        embed_compiled_data_into_model=False,
        flags=onnxruntime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        graph_optimization_level=getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{request['level']}"),
    )
    compiler.compile_to_file(str(compiled))
    seconds = time.perf_counter() - begin
    operators = Counter(node.op_type for node in onnx.load(str(compiled), load_external_data=False).graph.node)
    return {"nodes": operators.pop("EPContext", 0), "left": dict(operators), "seconds": round(seconds, 2)}


if __name__ == "__main__":
    try:
        answer = compile_model(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except Exception as error:  # noqa: BLE001 - ORT's exceptions have no base of their own
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # exit as epbuild's worker does: some EPs crash at exit

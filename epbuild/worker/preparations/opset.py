"""`opset`: conversion to another operator set with ONNX's converter."""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120


def convert(request: dict[str, Any]) -> None:
    """Convert the source to another version of ONNX's operator set, and write the result. Raises Refused if the conversion fails."""
    import onnx

    target = request["options"]["target_version"]
    newest = onnx.defs.onnx_opset_version()
    if target > newest:
        hint = f"Use at most {newest}, or install a newer onnx in the toolchain."
        raise step.Refused(f"onnx {onnx.__version__} supports operator sets up to {newest}, not {target}", hint)
    source = step.load_model(request)
    if step.count_weight_bytes(source) > step.MAX_INLINE_BYTES:
        hint = "Export the model again with the wanted operator set."
        raise step.Refused("the model is too large for ONNX's converter, which reads it as one protobuf message", hint)
    before = get_version(source)
    result = source if before == target else convert_model(source, target)
    step.log(f"converted from operator set {before} to {get_version(result)}")
    step.save(result, request)


def convert_model(source: Any, target: int) -> Any:
    """Return the model converted to the operator set `target`. Raises Refused."""
    import onnx

    try:
        result = onnx.version_converter.convert_version(source, target)
        step.check(result)
    except Exception as error:
        reason = str(error).rpartition(" failed: ")[2]  # without the position in the library's source code
        message = f"ONNX's converter cannot convert the model from operator set {get_version(source)} to {target}: {reason}"
        raise step.Refused(message, "Try a closer version, or export the model again.") from error
    return result


def get_version(model: Any) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return next((opset.version for opset in model.opset_import if opset.domain in {"", "ai.onnx"}), 0)


if __name__ == "__main__":
    step.main(convert)

"""EPContext models for these tests, as an EP would leave them in a folder, and ways in which they can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TARGET_PATTERN = "soc_type=([A-Za-z0-9_]+);arch=([0-9]+)"
BINARY = b"\0\1\2 soc_type=SC8380XP;arch=73 \3\4"


def context_node(reference: str | None = "llm.bin", **attributes: Any) -> Any:
    named = {} if reference is None else {"ep_cache_context": reference}
    known = {"name": "context", "main_context": 1, "embed_mode": 0, "source": QNN, **named, **attributes}
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **known)


def relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])


def save(path: Path, *nodes: Any, external: str | None = None, metadata: dict[str, str] | None = None) -> Path:
    """Write a model of these nodes; `external` names the file that its one weight is in."""
    shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, None, "n"]) for name in ("x", "y")]
    weights = []
    if external is not None:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=external)
        weights.append(weight)
    model = helper.make_model(helper.make_graph(list(nodes), "graph", shape[:1], shape[1:], weights))
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path

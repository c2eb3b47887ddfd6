"""Small decoder with a key-value cache: its declarations, and the nodes that add new values to the cache."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
INPUTS: dict[str, tuple[int, list[Any]]] = {
    "input_ids": (INT64, ["batch", "seq"]),
    "attention_mask": (INT64, ["batch", "total"]),
    "position_ids": (INT64, ["batch", "seq"]),
    "past_key_values.0.key": (FLOAT, ["batch", 2, "past", 16]),
    "past_key_values.0.value": (FLOAT, ["batch", 2, "past", 16]),
}
OUTPUTS: dict[str, tuple[int, list[Any]]] = {
    "logits": (FLOAT, ["batch", "seq", 256]),
    "present.0.key": (FLOAT, ["batch", 2, "past + seq", 16]),
    "present.0.value": (FLOAT, ["batch", 2, "past + seq", 16]),
}


def build(inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, tuple[int, list[Any]]] = OUTPUTS, *nodes: Any) -> bytes:
    values = [[helper.make_tensor_value_info(name, *what) for name, what in named.items()] for named in (inputs, outputs)]
    graph = helper.make_graph(nodes or [helper.make_node("Relu", ["x"], ["y"])], "decoder", *values)
    return bytes(helper.make_model(graph).SerializeToString())


def joins(how: str = "Concat") -> list[Any]:
    """Return nodes that add the new values to the cache. As in exports from torch, another node reads the cache first."""
    return [
        node
        for part in ("key", "value")
        for node in (
            helper.make_node("Identity", [f"past_key_values.0.{part}"], [f"{part}_before"]),
            helper.make_node(how, [f"{part}_before", f"{part}_new"], [f"present.0.{part}"]),
        )
    ]

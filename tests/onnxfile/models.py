"""Small models for these tests, built with the onnx package, and the header contents that onnx itself reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx
from onnx import TensorProto, helper

CONTEXT_OP = ("com.microsoft", "EPContext")


def context_node(name: str, **attributes: int | str | bytes) -> Any:
    return helper.make_node("EPContext", ["x"], ["y"], name=name, domain="com.microsoft", **attributes)


def model(nodes: list[Any], **graph: Any) -> Any:
    shape = ["batch", 3, None]
    made = helper.make_graph(
        nodes,
        graph.pop("name", "graph"),
        graph.pop("inputs", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]),
        graph.pop("outputs", [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [])]),
        **graph,
    )
    return helper.make_model(made, producer_name="epbuild-tests", opset_imports=[helper.make_opsetid("", 21)])


def subgraph(nodes: list[Any], **graph: Any) -> Any:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [output], **graph)


def if_node(then: Any, otherwise: Any) -> Any:
    return helper.make_node("If", ["condition"], ["y"], name="if", then_branch=then, else_branch=otherwise)


def external_tensor(name: str, location: str, **entries: int) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def two_level_model(main: str = "main_qnn.bin", branch: str = "branch_qnn.bin") -> Any:
    """Return a compiled model with one reference in its graph and one inside an If, among other nodes and weights."""
    inner = context_node("inner", embed_mode=0, main_context=1, ep_cache_context=branch, partition_name="p1")
    outer = context_node("outer", ep_cache_context=main, embed_mode=0, source="QNN", hidden_setting=7)
    then = subgraph([helper.make_node("Relu", ["x"], ["r"]), inner])
    otherwise = subgraph([helper.make_node("Identity", ["x"], ["y"])])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [0.0] * 6)
    return model([outer, if_node(then, otherwise)], initializer=[weight])


def all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from all_nodes(inner)


def operator_counts(proto: Any) -> Counter[tuple[str, str]]:
    return Counter((node.domain, node.op_type) for node in all_nodes(proto.graph))


def reference_attributes(proto: Any) -> dict[str, Any]:
    """Return the `ep_cache_context` attribute of each EPContext node, by the node's name."""
    return {
        node.name: attribute
        for node in all_nodes(proto.graph)
        if (node.domain, node.op_type) == CONTEXT_OP
        for attribute in node.attribute
        if attribute.name == "ep_cache_context"
    }


def parse(data: bytes) -> Any:
    return onnx.load_model_from_string(data)

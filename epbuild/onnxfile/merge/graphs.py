"""Graphs of the onnx package, and values in these graphs that ONNX Runtime merges.

ONNX Runtime's optimizer replaces equal values by one value. If two inputs of an EPContext node are equal, the EP gets one
value twice. QNN binds each input of a context by the name of its value. For an input without its own name, QNN ends the
process (`Input name not found`). Neither an Identity between the values nor two equal nodes help: ONNX Runtime removes the
former and merges the latter, including equal constants (measured with 1.31.1, at every optimization level except none).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from epbuild.core.digest import hash_bytes
from epbuild.onnxfile.read.epcontext import DOMAIN, OP_TYPE

_IDENTITIES = frozenset({"Identity", "Dropout"})
"""Operators whose first output equals their first input during inference."""


def is_context(node: Any) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, OP_TYPE)


def read_text_attribute(node: Any, name: str) -> str | None:
    """Return the text of a node's attribute, or None if the node lacks the attribute."""
    return next((attribute.s.decode("utf-8", "replace") for attribute in node.attribute if attribute.name == name), None)


def walk_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all subgraphs in its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from walk_graphs(inner)


def walk_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of its subgraphs."""
    return (node for inner in walk_graphs(graph) for node in inner.node)


def find_equal_inputs(nodes: Sequence[Any], initializers: Iterable[Any]) -> Iterator[tuple[int, str, str]]:
    """Find EPContext nodes that would get one value twice. Yield the index of each node and the names of two equal inputs.

    `nodes` are the nodes of a main graph, in an order in which they can run. Values that subgraphs compute are not
    compared.
    """
    used = {name for node in nodes if not is_context(node) for name in node.input}
    identities = {tensor.name: _hash_tensor(tensor) for tensor in initializers if tensor.name in used}
    for index, node in enumerate(nodes):
        if not is_context(node):
            identities.update(_identify_outputs(node, identities))
            continue
        first: dict[str, str] = {}
        for name in filter(None, node.input):
            identity = identities.get(name, name)
            if identity in first:
                yield index, first[identity], name
            else:
                first[identity] = name


def _identify_outputs(node: Any, identities: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each output of a node with its identity. Values with equal identities are equal."""
    inputs = [identities.get(name, name) for name in node.input]
    if not node.domain and node.op_type in _IDENTITIES:
        yield node.output[0], inputs[0]
        return
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    identity = hash_bytes(repr((node.domain, node.op_type, inputs, attributes)).encode())
    yield from ((name, f"{identity}.{place}") for place, name in enumerate(node.output) if name)


def _hash_tensor(tensor: Any) -> str:
    if tensor.raw_data:
        return hash_bytes(repr((tensor.data_type, list(tensor.dims))).encode() + b"\0" + tensor.raw_data)
    copy = type(tensor)()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    copy.ClearField("doc_string")
    return hash_bytes(copy.SerializeToString(deterministic=True))

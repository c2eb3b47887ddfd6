"""Values of a graph that ONNX Runtime makes one when it optimises.

Where two of them are inputs of one EPContext node, its EP gets one value twice. QNN binds each input of a context by the name of its
value, and ends the process (`Input name not found`) for an input that has none of its own. An Identity between is no help, and neither
are two equal nodes: ONNX Runtime removes the one and merges the others, constants that are equal included (measured with 1.31.1, at every
level of optimisation but none).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from epbuild.core.digest import digest_of
from epbuild.onnxfile.protos import is_context

_PASSED_ON = frozenset({"Identity", "Dropout"})
"""Operators whose first output is their first input, as far as a session that infers is concerned."""


def equal_inputs(nodes: Sequence[Any], initializers: Iterable[Any]) -> Iterator[tuple[int, str, str]]:
    """For each EPContext node that would meet one value twice: its number among the nodes, and the names of two such inputs.

    The nodes are those of a main graph, in an order in which they can run. What subgraphs compute is not looked into.
    """
    used = {name for node in nodes if not is_context(node) for name in node.input}
    known = {tensor.name: _content(tensor) for tensor in initializers if tensor.name in used}
    for number, node in enumerate(nodes):
        if is_context(node):
            yield from ((number, *pair) for pair in _equal(node.input, known))
        else:
            known.update(_computed(node, known))


def _equal(names: Iterable[str], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    first: dict[str, str] = {}
    for name in filter(None, names):
        value = known.get(name, name)
        if value in first:
            yield first[value], name
        else:
            first[value] = name


def _computed(node: Any, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What each output of a node is, such that equal texts are equal values."""
    inputs = [known.get(name, name) for name in node.input]
    if not node.domain and node.op_type in _PASSED_ON:
        yield node.output[0], inputs[0]
        return
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    made = digest_of(repr((node.domain, node.op_type, inputs, attributes)).encode())
    yield from ((name, f"{made}.{place}") for place, name in enumerate(node.output) if name)


def _content(tensor: Any) -> str:
    if tensor.raw_data:
        return digest_of(repr((tensor.data_type, list(tensor.dims))).encode() + b"\0" + tensor.raw_data)
    copy = type(tensor)()
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    copy.ClearField("doc_string")
    return digest_of(copy.SerializeToString(deterministic=True))

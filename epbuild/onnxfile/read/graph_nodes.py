"""Reader of the nodes in a model, with the names of their values."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from epbuild.core.safepath import open_raw
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import MAX_DEPTH
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader

_GRAPH_FIELDS = frozenset({proto.GRAPH_NODE, proto.GRAPH_INITIALIZER})
_NODE_FIELDS = frozenset({proto.NODE_INPUT, proto.NODE_OUTPUT, proto.NODE_OP_TYPE, proto.NODE_DOMAIN, proto.NODE_ATTRIBUTE})


class ConnectedNode(NamedTuple):
    """Node with the names of its inputs and outputs. `operator` includes the domain unless it is ONNX's own."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class GraphNodes(Struct):
    """Nodes of one graph, and the names of its initializers and of the outputs of its Constant nodes."""

    nodes: list[ConnectedNode] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)


def read_graphs(model: Path) -> list[GraphNodes]:
    """Read the nodes of the main graph and of every subgraph. Raises MalformedModel and OSError.

    The size of the result is limited only by the size of the texts in the file, so read the header of an unknown file first.
    """
    with open_raw(model) as file:
        wire = WireReader(io.BufferedReader(file))
        graphs = list(wire.fields(0, wire.size, frozenset({proto.MODEL_GRAPH})))
        return list(_read_graph(wire, graphs, depth=0))


def _read_graph(wire: WireReader, pieces: Iterable[Field], depth: int) -> Iterator[GraphNodes]:
    """Yield a graph and the subgraphs in its nodes. Protobuf allows a message to be split into several pieces."""
    found = GraphNodes()
    inner: list[Field] = []
    for piece in pieces:
        if depth > MAX_DEPTH:
            raise MalformedModel("subgraphs are nested deeper than protobuf allows", piece.tag_at)
        for part in wire.message(piece, _GRAPH_FIELDS):
            if part.number == proto.GRAPH_NODE:
                node, attributes = _read_node(wire, part)
                found.nodes.append(node)
                inner += (graph for attribute in attributes for graph in wire.message(attribute, proto.ATTRIBUTE_GRAPHS))
                if node.operator == "Constant":
                    found.constants.update(node.outputs)
            else:
                found.constants.update(wire.text(name) for name in wire.message(part, frozenset({proto.TENSOR_NAME})))
    yield found
    for subgraph in inner:
        yield from _read_graph(wire, [subgraph], depth + 1)


def read_main_nodes(wire: WireReader) -> Iterator[tuple[ConnectedNode, list[Field]]]:
    """Yield the nodes of the main graph, with their attributes. Raises MalformedModel."""
    for graph in wire.fields(0, wire.size, frozenset({proto.MODEL_GRAPH})):
        for node in wire.message(graph, frozenset({proto.GRAPH_NODE})):
            yield _read_node(wire, node)


def _read_node(wire: WireReader, node: Field) -> tuple[ConnectedNode, list[Field]]:
    operator = domain = ""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: list[Field] = []
    for part in wire.message(node, _NODE_FIELDS):
        match part.number:
            case proto.NODE_INPUT:
                inputs.append(wire.text(part))
            case proto.NODE_OUTPUT:
                outputs.append(wire.text(part))
            case proto.NODE_OP_TYPE:
                operator = wire.text(part)
            case proto.NODE_DOMAIN:
                domain = wire.text(part)
            case _:
                attributes.append(part)
    name = operator if domain in ("", "ai.onnx") else f"{domain}:{operator}"
    return ConnectedNode(name, tuple(inputs), tuple(outputs)), attributes

"""Graphs and nodes as the onnx package has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epbuild.onnxfile.epcontext import DOMAIN, OP_TYPE


def is_context(node: Any) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, OP_TYPE)


def text_of(node: Any, name: str) -> str | None:
    return next((attribute.s.decode("utf-8", "replace") for attribute in node.attribute if attribute.name == name), None)


def graphs(graph: Any) -> Iterator[Any]:
    """A graph, and the subgraphs in its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs(inner)


def nodes(graph: Any) -> Iterator[Any]:
    return (node for inner in graphs(graph) for node in inner.node)

"""Nodes that an EP does not support, and that preparations replace.

The preparation `rewrite` replaces patterns of nodes. `dequantize` replaces dynamically quantized nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Rewrite
from epbuild.core.units import format_count
from epbuild.onnxfile.read.graph_nodes import read_graphs
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.worker.patterns import find_matches


def count_patterns(model: Path, rewrites: Iterable[Rewrite]) -> dict[str, int]:
    """Return how often each pattern occurs in a model, by the pattern's summary. Patterns that do not occur are left out.

    Weights are not read. Return an empty mapping if the file cannot be read, because callers use the result only as advice.
    """
    known = list(rewrites)
    try:
        graphs = read_graphs(model) if known else []
    except (MalformedModel, OSError):
        return {}
    found = {row.summary: sum(_count(graph.nodes, graph.constants, row) for graph in graphs) for row in known}
    return {summary: count for summary, count in found.items() if count}


def _count(nodes: Any, constants: Any, row: Rewrite) -> int:
    return sum(1 for _ in find_matches(nodes, constants, to_document(row)["nodes"]))


def to_document(row: Rewrite) -> dict[str, Any]:
    """Return a pattern and its replacement as the script of `rewrite` expects them."""
    return {"name": row.name, "nodes": to_builtins(row.nodes), "replacement": to_builtins(row.replacement)}


def describe_dynamic_nodes(header: ModelHeader, entry: EpEntry) -> str | None:
    """Return the dynamically quantized nodes of a model that an EP does not fully support, as a clause, or None."""
    known = entry.dynamic_quantization.operators if entry.dynamic_quantization is not None else ()
    counts = {operator: count for operator in known if (count := header.operators.get(_split_operator(operator), 0))}
    if not counts:
        return None
    listed = [f"{count} {_split_operator(operator)[1]}" for operator, count in counts.items()]
    nodes = format_count(sum(counts.values()), "dynamically quantized node")
    return f"{nodes} ({', '.join(listed)}), which {entry.ep} does not fully support"


def _split_operator(name: str) -> tuple[str, str]:
    """Return the domain and the operator in a name such as `com.microsoft:QAttention`."""
    domain, _, operator = name.rpartition(":")
    return domain, operator

"""Patterns of nodes on which an EP is known to fail.

The preparation `rewrite` replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from epbuild.catalog.facts import Rewrite
from epbuild.onnxfile.read.graph_nodes import read_graphs
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

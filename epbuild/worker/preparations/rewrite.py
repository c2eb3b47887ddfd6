"""`rewrite`: replacement of nodes on which EPs fail by equivalent nodes.

`patterns.py` of the worker explains patterns. Only the last node of a match is replaced.
"""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

patterns = step.beside("..", "patterns.py")


def rewrite(request: dict[str, Any]) -> None:
    """Write the source with replaced nodes, without reading its external data. Raises Refused if no pattern occurs in the source."""
    model = step.load_header(request)
    graphs = list(step.list_graphs(model.graph))
    count = 0
    for row in request["settings"]["rewrites"]:
        replaced = sum(replace_nodes(graph, row) for graph in graphs)
        if replaced:
            step.log(f"{row['name']}: {replaced} replaced")
        count += replaced
    if not count:
        names = ", ".join(row["name"] for row in request["settings"]["rewrites"])
        raise step.Refused(f"the model has none of the patterns: {names}", step.REMOVE_HINT)
    step.save(model, request)


def replace_nodes(graph: Any, row: dict[str, Any]) -> int:
    """Replace the operator and the inputs of the last node in each match of a pattern in one graph. Return the number of matches."""
    nodes = [
        (node.op_type if not node.domain else f"{node.domain}:{node.op_type}", node.input, node.output) for node in graph.node
    ]
    constants = {tensor.name for tensor in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }
    matches = list(patterns.find_matches(nodes, constants, row["nodes"]))
    for index, values in matches:
        new = row["replacement"]
        node = graph.node[index]
        node.op_type = new["op"]
        del node.input[:]
        node.input.extend(values[name] for name in new["inputs"])
    return len(matches)


if __name__ == "__main__":
    step.main(rewrite)

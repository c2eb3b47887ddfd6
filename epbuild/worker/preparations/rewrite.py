"""`rewrite`: replacement of nodes on which EPs fail by equivalent nodes.

`patterns.py` of the worker explains patterns. Only the last node of a match is replaced.
"""

from __future__ import annotations

import os
import runpy
import shutil
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

patterns = step.beside("..", "patterns.py")


def rewrite(request: dict[str, Any]) -> None:
    """Write the source with replaced nodes. Raises Refused if no pattern occurs in the source.

    Weights are not read, and files of external data are copied as they are, so that the store keeps one copy of each file.
    """
    model = step.load_header(request)
    graphs = list(all_graphs(model.graph))
    count = 0
    for row in request["settings"]["rewrites"]:
        replaced = sum(replace_nodes(graph, row) for graph in graphs)
        if replaced:
            step.log(f"{row['name']}: {replaced} replaced")
        count += replaced
    if not count:
        names = ", ".join(row["name"] for row in request["settings"]["rewrites"])
        raise step.Refused(f"the model has none of the patterns: {names}", "Remove this step from 'prepare'.")
    copy_external_data(request)
    import onnx

    onnx.save(model, request["output"])


def all_graphs(graph: Any) -> Any:
    """Yield a graph and the subgraphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_graphs(inner)


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


def copy_external_data(request: dict[str, Any]) -> None:
    """Copy the files of external data to the same locations beside the output."""
    source, output = (os.path.dirname(request[name]) for name in ("source", "output"))  # noqa: PTH120
    for folder, _, names in os.walk(source):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            location = os.path.relpath(path, source)
            if path == request["source"]:
                continue
            place = os.path.join(output, location)  # noqa: PTH118
            os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
            shutil.copyfile(path, place)


if __name__ == "__main__":
    step.main(rewrite)

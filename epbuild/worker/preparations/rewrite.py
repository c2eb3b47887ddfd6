"""`rewrite`: replacement of nodes that an EP is known to fail on, by equal ones.

A pattern is a list of nodes in order, each with `op`, `inputs` and `output`. Texts name values: equal texts are equal values, and a text
that begins with `$` is a constant. The last node of a pattern is the one that is replaced.

    [{"op": "Reciprocal", "inputs": ["root"], "output": "inverse"},
     {"op": "Mul", "inputs": ["x", "inverse"], "output": "normal"},
     {"op": "Mul", "inputs": ["$weight", "normal"], "output": "result"}]
"""

from __future__ import annotations

import os
import runpy
import shutil
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

COMMUTATIVE = ("Add", "Mul")


def rewrite(request: dict[str, Any]) -> None:
    """Write the source with replaced nodes. Raises Refused if no pattern occurs in it.

    Weights are not read, and files of external data are copied as they are, so that the store keeps one copy of each.
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
    """Replace the inputs of the last node of each match of a pattern in one graph. Return the number of matches."""
    nodes = [
        (node.op_type if not node.domain else f"{node.domain}:{node.op_type}", node.input, node.output) for node in graph.node
    ]
    constants = {tensor.name for tensor in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }
    matches = list(find_matches(nodes, constants, row["nodes"]))
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


def find_matches(nodes: Any, constants: Any, pattern: Any) -> Any:
    """Yield the index of the last node, and the values by their names in the pattern, for each match.

    `nodes` has the operator, the inputs and the outputs of each node of one graph. `constants` are the names of its constants. The order
    of two factors or summands matters for the last node only.
    """
    makers = {name: index for index, (_, _, outputs) in enumerate(nodes) for name in outputs if name}
    last = pattern[-1]
    for index, (operator, inputs, _) in enumerate(nodes):
        if operator == last["op"] and len(inputs) == len(last["inputs"]):
            values = bind(last["inputs"], inputs, constants, {})
            values = values and match_makers(nodes, makers, constants, pattern[:-1], values)
            if values:
                yield index, values


def bind(names: Any, inputs: Any, constants: Any, values: Any) -> Any:
    """Return `values` with those of more names; None if a name would get a second value or a wrong kind of value."""
    found = dict(values)
    for name, value in zip(names, inputs, strict=True):
        if found.setdefault(name, value) != value or (name.startswith("$") and value not in constants):
            return None
    return found


def match_makers(nodes: Any, makers: Any, constants: Any, pattern: Any, values: Any) -> Any:
    """Return the values of a pattern whose later nodes have these `values`; None if an earlier node does not match."""
    if not pattern:
        return values
    wanted = pattern[-1]
    index = makers.get(values.get(wanted["output"]))
    if index is None:
        return None
    operator, inputs, _ = nodes[index]
    if operator != wanted["op"] or len(inputs) != len(wanted["inputs"]):
        return None
    orders = [list(inputs)]
    if operator in COMMUTATIVE:
        orders.append(list(reversed(inputs)))
    for order in orders:
        found = bind(wanted["inputs"], order, constants, values)
        found = found and match_makers(nodes, makers, constants, pattern[:-1], found)
        if found:
            return found
    return None


if __name__ == "__main__":
    step.main(rewrite)

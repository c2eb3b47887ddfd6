"""Search for patterns of nodes in a graph.

A pattern is a list of nodes in order, each with `op`, `inputs` and `output`. Texts name values: equal texts are equal values, and a text
that begins with `$` names a constant.

    [{"op": "Reciprocal", "inputs": ["root"], "output": "inverse"},
     {"op": "Mul", "inputs": ["x", "inverse"], "output": "normal"},
     {"op": "Mul", "inputs": ["$weight", "normal"], "output": "result"}]

epbuild imports this module to report known patterns. `rewrite` loads it inside a toolchain, so it needs only the standard library.
"""

from __future__ import annotations

from typing import Any

COMMUTATIVE = ("Add", "Mul")


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
    """Return `values` extended by the value of each of `names`, which is the input at the same position.

    Return None if a name already has another value, or if the name of a constant would get a value that is not constant.
    """
    found = dict(values)
    for name, value in zip(names, inputs, strict=True):
        if found.setdefault(name, value) != value or (name.startswith("$") and value not in constants):
            return None
    return found


def match_makers(nodes: Any, makers: Any, constants: Any, pattern: Any, values: Any) -> Any:
    """Match the other nodes of a pattern, last first, and return `values` extended by theirs. Return None without a match."""
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

"""Names of values and nodes in models to merge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from epbuild.core.errors import ChangeRefused, Problem
from epbuild.onnxfile.merge.connection import Connection
from epbuild.onnxfile.merge.graphs import is_context, read_text_attribute, walk_graphs, walk_nodes
from epbuild.onnxfile.read.weights_files import FindEp

_HINT = "Add a prefix to the names of one model with --prefix."


def name_ep(find_ep: FindEp, source: str | None) -> str:
    """Return the name of the EP of the EPContext nodes with this `source`, or `source` if the EP is unknown."""
    found = find_ep(source)
    return str(source) if found is None else found.ep


@dataclass
class GraphPart:
    """Model to merge: its proto, and the new names of its values by old name."""

    label: str
    prefix: str
    proto: Any
    lone: bool
    """True if no other model is known to have a graph in the model's context."""
    find_ep: FindEp
    names: dict[str, str] = field(init=False)
    contexts: list[Any] = field(init=False)
    fed: set[str] = field(default_factory=set)
    """Inputs that an earlier model feeds."""
    feeding: set[str] = field(default_factory=set)
    """Outputs that feed a later model."""

    def __post_init__(self) -> None:
        def add(name: str) -> str:
            self.names[name] = self.prefix + name
            return name

        self.names = {}
        _map_graph(self.proto.graph, add)
        self.contexts = [node for node in walk_nodes(self.proto.graph) if is_context(node)]

    @property
    def inputs(self) -> dict[str, Any]:
        """Inputs of the graph that have no initial value in the model, by name."""
        initialized = {tensor.name for tensor in self.proto.graph.initializer}
        initialized |= {tensor.values.name for tensor in self.proto.graph.sparse_initializer}
        return {value.name: value for value in self.proto.graph.input if value.name not in initialized}

    def find_objection(self, old: str, new: str) -> Problem | None:
        """Return the problem with the name `new` for a value of this model, or None if the name is usable."""
        taken = next((name for name, other in self.names.items() if other == new and name != old), None)
        if taken is not None:
            renamed = f"'{old}' of {self.label} would be renamed to '{new}'"
            return Problem("EPB627", f"{renamed}, which is the name of another value of this model", None, _HINT)
        return next((problem for node in self.contexts if (problem := self.find_context_objection(node, old, new))), None)

    def find_names_attribute(self, node: Any) -> str | None:
        """Return the attribute that maps the node's values to their names in the context. None if values cannot be renamed."""
        ep = self.find_ep(read_text_attribute(node, "source"))
        return ep.context_changes.value_names if ep is not None else None

    def find_context_objection(self, node: Any, old: str, new: str) -> Problem | None:
        """Return why an EP would not load an EPContext node after its value `old` is renamed to `new`, or None if the EP would load it."""
        if new == old or old not in chain(node.input, node.output):
            return None
        source, attribute = read_text_attribute(node, "source"), self.find_names_attribute(node)
        renamed = f"'{old}' of {self.label} would be renamed to '{new}'"
        if attribute is None:
            message = f"{source} does not load a context whose inputs or outputs are renamed: {renamed}"
            hint = "Remove the model's prefix, or rename the value on the other side of the connection."
            return Problem("EPB626", message, None, hint)
        own_names = _read_own_names(node, attribute)
        if set("=;") & set(new + own_names[old]):
            message = f"{renamed}, but {source} does not support '=' and ';' in names"
            return Problem("EPB626", message, None, "Remove the model's prefix, or rename the values of the source model.")
        if any(new in (value, name) for value, name in own_names.items() if value != old):
            message = f"{renamed}, but the context already uses that name for another input or output"
            return Problem("EPB626", message, None, _HINT)
        return None


def connect(parts: Sequence[GraphPart], connections: Sequence[Connection]) -> None:
    """Choose one name for connected values, and check every name. Raises ChangeRefused (EPB626, EPB627) for the first problem."""
    fed: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for connection in sorted(connections):
        fed.setdefault((connection.source, connection.output), []).append((connection.target, connection.input))
    for (source, output), inputs in fed.items():
        ends = [(source, output), *inputs]
        name = _choose_common_name(parts, ends, fixed=output in parts[source].fed)
        for number, value in ends:
            parts[number].names[value] = name
        parts[source].feeding.add(output)
        for number, value in inputs:
            parts[number].fed.add(value)
    for part in parts:
        for node in part.contexts:
            for old in chain(node.input, node.output):
                problem = part.find_context_objection(node, old, part.names.get(old, old))
                if problem is not None:
                    raise ChangeRefused(problem)
    _refuse_duplicate_names(parts)


def rename(part: GraphPart) -> None:
    """Rename the values in the model's proto. For EPs that need the old names, write them into attributes."""
    for node in part.contexts:
        _write_own_names(part, node)
    _map_graph(part.proto.graph, part.names.__getitem__)


def name_nodes(parts: Sequence[GraphPart]) -> None:
    """Make the nodes' names unique, as ONNX Runtime requires. Raises ChangeRefused (EPB627)."""
    taken: dict[str, str] = {}
    for part in parts:
        for node in walk_nodes(part.proto.graph):
            if is_context(node):
                _name_context(part, node, taken)
            elif node.name:
                node.name = part.prefix + node.name
            if node.name in taken:
                message = f"both {taken[node.name]} and {part.label} have a node named '{node.name}'"
                raise ChangeRefused(Problem("EPB627", message, None, _HINT))
            if node.name:
                taken[node.name] = part.label


def _map_graph(graph: Any, new: Callable[[str], str]) -> None:
    """Replace the name of every value with the result of `new`. An empty name stands for a missing value and is kept."""
    for inner in walk_graphs(graph):
        for node in inner.node:
            for values in (node.input, node.output):
                for index, name in enumerate(values):
                    if name:
                        values[index] = new(name)
        for value in chain(inner.input, inner.output, inner.value_info, inner.initializer):
            value.name = new(value.name)
        for tensor in inner.sparse_initializer:
            tensor.values.name = new(tensor.values.name)
        for annotation in inner.quantization_annotation:
            annotation.tensor_name = new(annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = new(entry.value)


def _choose_common_name(parts: Sequence[GraphPart], ends: Sequence[tuple[int, str]], *, fixed: bool) -> str:
    """Return the first name without a problem: the output's name, or else an input's. If `fixed`, try only the output's name."""
    candidates = list(dict.fromkeys(parts[number].names[value] for number, value in ends))[: 1 if fixed else None]
    first: Problem | None = None
    for name in candidates:
        objections = (parts[number].find_objection(value, name) for number, value in ends)
        problem = next(filter(None, objections), None)
        if problem is None:
            return name
        first = first or problem
    assert first is not None  # noqa: S101 - there is at least one candidate, and each had a problem
    raise ChangeRefused(first)


def _read_own_names(node: Any, attribute: str) -> dict[str, str]:
    """Return the names that the context uses for a node's inputs and outputs, by the name of the value."""
    own = dict(pair.split("=", 1) for pair in (read_text_attribute(node, attribute) or "").split(";") if "=" in pair)
    return {value: own.get(value, value) for value in chain(node.input, node.output) if value}


def _write_own_names(part: GraphPart, node: Any) -> None:
    attribute, names = part.find_names_attribute(node), part.names
    if attribute is None:
        return
    own_names = _read_own_names(node, attribute)
    if all(names[value] == value for value in own_names):
        return
    text = "".join(f"{names[value]}={name};" for value, name in own_names.items() if names[value] != name)
    _set_text(node, attribute, text)


def _set_text(node: Any, name: str, text: str) -> None:
    from onnx import helper

    attribute = next((attribute for attribute in node.attribute if attribute.name == name), None)
    if attribute is None:
        node.attribute.append(helper.make_attribute(name, text.encode()))
    else:
        attribute.s = text.encode()


def _name_context(part: GraphPart, node: Any, taken: dict[str, str]) -> None:
    """Rename a node whose name is taken. Raises an error if the EP needs this name to find the graph in the context."""
    if node.name not in taken:
        return
    source = read_text_attribute(node, "source")
    ep, name = part.find_ep(source), name_ep(part.find_ep, source)
    alone = part.lone and sum(name_ep(part.find_ep, read_text_attribute(other, "source")) == name for other in part.contexts) == 1
    if not (alone and ep is not None and ep.context_changes.lone_node_name):
        message = (
            f"both {taken[node.name]} and {part.label} have an EPContext node '{node.name}'; {name} needs that name unchanged"
        )
        raise ChangeRefused(Problem("EPB627", message, None, "Compile one of the models from a different path."))
    if part.prefix:
        node.name = part.prefix + node.name
        _set_text(node, "partition_name", node.name)


def _refuse_duplicate_names(parts: Sequence[GraphPart]) -> None:
    """Raise an error for two values with the same name, unless they are connected or are an input of several models."""
    defined: dict[str, tuple[GraphPart, bool]] = {}
    for part in parts:
        inputs = part.inputs
        unfed = (name for name in inputs if name not in part.fed)
        for old in dict.fromkeys(chain(unfed, _list_defined_values(part.proto.graph))):
            new, is_input = part.names[old], old in inputs
            first, was_input = defined.setdefault(new, (part, is_input))
            if first is not part and not (was_input and is_input):
                message = f"both {first.label} and {part.label} have a value named '{new}', but they are not connected"
                raise ChangeRefused(Problem("EPB627", message, None, _HINT))


def _list_defined_values(graph: Any) -> Iterator[str]:
    """Yield the names that a graph and its subgraphs define: initializers, inputs of subgraphs, and outputs of nodes."""
    for inner in walk_graphs(graph):
        yield from (tensor.name for tensor in inner.initializer)
        yield from (tensor.values.name for tensor in inner.sparse_initializer)
        if inner is not graph:
            yield from (value.name for value in inner.input)
        yield from (name for node in inner.node for name in node.output if name)

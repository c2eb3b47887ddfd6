"""`split`: extraction of one of the parts into which a model is split.

Each part is extracted by itself. All parts are computed from the whole graph by the same rules, so that they fit together:

1. Constants are nodes that depend only on initializers and on the sizes of the model's inputs. Each part has copies of the constants
   that it needs, because EPs need constant weights and constant shapes.
2. Each other node is in exactly one part. A value that a later part reads becomes an output of the part that computes it, and an input
   of each part that reads it. Its name stays the same.
"""

from __future__ import annotations

import json
import math
import os
import re
import runpy
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120

METADATA = "epbuild.split"
LAYER = re.compile(r"(?<![0-9A-Za-z])(?:layers?|h|blocks?)[./_](\d+)(?![0-9A-Za-z])")
SCOPES = "pkg.torch.onnx.name_scopes"  # metadata of nodes that torch.onnx writes
DOMAINS = ("", "ai.onnx", "com.microsoft")
RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
QUANTIZATION = ("QuantizeLinear", "DequantizeLinear")
VALUES_PER_BYTE = {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}
LARGE_WEIGHTS = 1 / 256  # of all weights
CONNECTION_COST = 1 / 32  # one connection less is worth moving a boundary by an eighth of a part: 2 * (1 / 8) ** 2
ALIGNMENT = 4096


def split(request: dict[str, Any]) -> None:
    """Write one part of the source. Raises Refused if the source cannot be split as the options say."""
    options = request["options"]
    model = step.load_header(request)
    step.load_vectors(model, request)
    step.sort_nodes(model.graph)
    whole = Whole(model)
    if not whole.nodes:
        raise step.Refused("the model's outputs are constants: they depend on no input", step.REMOVE_HINT)
    parts = assign_parts(whole, options)
    count, part = max(parts.values()) + 1, options["part"]
    if part >= count:
        raise step.Refused(f"'part' is {part}, but the model is split into {count} parts", f"Use 0 to {count - 1}.")
    connections = find_connections(whole, parts)
    found = find_types(whole, connections)
    before, shapes = step.node_count(model), {name: describe_shape(whole.types[name]) for name in whole.inputs}
    extract(whole, part, parts, [found[name] for name in connections])
    set_metadata(model, {"part": part, "parts": count, "inputs": shapes})
    log_part(model, f"part {part} of {count}, counted from 0", before, connections)
    save(model, request)


# -- The whole model ---------------------------------------------------------------------------------------------------


class Whole:
    """Graph of the whole model. Nodes are identified by their index. `nodes` has neither constants nor nodes that no output needs."""

    def __init__(self, model: Any) -> None:
        self.model, self.graph = model, model.graph
        self.types = infer_types(model)
        self.inputs = {value.name: value for value in step.required_inputs(model)}
        self.weights = {tensor.name: count_bytes(tensor) for tensor in list_weights(self.graph)}
        self.maker = {name: index for index, node in enumerate(self.graph.node) for name in node.output if name}
        known = {*self.inputs, *self.weights, *self.maker}
        self.reads = [[name for name in step.list_read_values(node) if name in known] for node in self.graph.node]
        self.sizes = find_fixed_sizes(self)
        for index in self.sizes:
            self.reads[index] = []
        self.constants = find_constants(self)
        self.nodes = sorted(self.find_needed(value.name for value in self.graph.output) - self.constants)
        self.readers: dict[str, list[int]] = {name: [] for name in known}
        for index in self.nodes:
            for name in dict.fromkeys(self.reads[index]):
                self.readers[name].append(index)

    def find_needed(self, names: Iterable[str], among: Collection[int] | None = None) -> set[int]:
        """Return the nodes, among some nodes, that compute values and everything that these values depend on."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            index = self.maker.get(waiting.pop())
            if index is not None and index not in found and (among is None or index in among):
                found.add(index)
                waiting += self.reads[index]
        return found

    def find_makers(self, index: int) -> list[int]:
        """Return the nodes whose results a node reads, without constants."""
        return [self.maker[name] for name in self.reads[index] if name in self.maker and self.maker[name] not in self.constants]

    def find_readers(self, index: int) -> list[int]:
        """Return the nodes that read the results of a node."""
        return [reader for name in self.graph.node[index].output if name for reader in self.readers[name]]

    def find_weights(self, index: int) -> dict[str, int]:
        """Return the initializers that a node reads, directly or through constants, with their sizes in bytes."""
        nodes = [index, *self.find_needed(self.reads[index], self.constants)]
        return {name: self.weights[name] for node in nodes for name in self.reads[node] if name in self.weights}


def find_constants(whole: Whole) -> set[int]:
    """Return the nodes that depend only on initializers and on the sizes of the model's inputs."""
    found: set[int] = set()
    known = set(whole.weights)
    for index, node in enumerate(whole.graph.node):
        if node.domain not in DOMAINS or node.op_type in RANDOM or step.list_subgraphs(node):
            continue
        if (node.op_type in ("Shape", "Size") and node.input[0] in whole.inputs) or known.issuperset(whole.reads[index]):
            found.add(index)
            known.update(node.output)
    return found


def find_fixed_sizes(whole: Whole) -> dict[int, list[int]]:
    """Return the results of the Shape nodes of values with fixed sizes. In parts, these nodes are constants."""
    found = {}
    for index, node in enumerate(whole.graph.node):
        if node.op_type == "Shape" and node.domain in DOMAINS and node.input[0] in whole.types:
            limits = {attribute.name: attribute.i for attribute in node.attribute}
            sizes = step.sizes_of(whole.types[node.input[0]])
            if sizes is not None and all(isinstance(size, int) for size in sizes):
                found[index] = sizes[limits.get("start", 0) : limits.get("end")]
    return found


def list_weights(graph: Any) -> Iterator[Any]:
    """Yield the tensors of a graph's initializers, named like the initializers."""
    yield from graph.initializer
    yield from (tensor.values for tensor in graph.sparse_initializer)


def count_bytes(tensor: Any) -> int:
    """Return the size of a tensor's data, which need not be loaded."""
    import onnx

    kind = onnx.TensorProto.DataType.Name(tensor.data_type)
    size = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    count: int = math.prod(tensor.dims)
    return -(-count * size // VALUES_PER_BYTE.get(kind, 1))


# -- Which part each node is in ----------------------------------------------------------------------------------------


def assign_parts(whole: Whole, options: dict[str, Any]) -> dict[int, int]:
    """Return the part of each node. Raises Refused if a part would be empty."""
    if "at" in options:
        return assign_parts_at(whole, options["at"])
    order = order_nodes(whole)
    counts, barred = count_crossing(whole, order)
    if "parts" in options:
        sizes = [1 + sum(whole.find_weights(index).values()) for index in order]
        starts = find_equal_parts([0, *accumulate(sizes)], counts, barred, options["parts"])
    else:
        starts = find_layers(whole, order, counts, barred, options["layers"])
    return {index: bisect_right(starts, position) for position, index in enumerate(order)}


def order_nodes(whole: Whole) -> list[int]:
    """Return the nodes in an order in which few values cross a boundary. Most nodes keep their order.

    Nodes that depend on no weights, such as the computation of a mask, move to their first reader. Nodes on which no weights depend,
    such as conversions of outputs, move to the nodes that they read.
    """
    large = {index for index in whole.nodes if has_weights(whole, index)}
    after, before = set(large), set(large)
    for index in whole.nodes:
        if not after.isdisjoint(whole.find_makers(index)):
            after.add(index)
    for index in reversed(whole.nodes):
        if not before.isdisjoint(whole.find_readers(index)):
            before.add(index)
    places: dict[int, int] = {}
    for index in reversed(whole.nodes):
        reading = [] if index in after else [places[reader] for reader in whole.find_readers(index)]
        places[index] = min(reading, default=index)
    for index in whole.nodes:
        if (index in after and index not in before) or whole.graph.node[index].op_type == "DequantizeLinear":
            places[index] = max((places[maker] for maker in whole.find_makers(index)), default=places[index])
    return sorted(whole.nodes, key=lambda index: (places[index], index))


def has_weights(whole: Whole, index: int) -> bool:
    """Return whether a node reads a noticeable share of the model's weights."""
    return sum(whole.find_weights(index).values()) >= sum(whole.weights.values()) * LARGE_WEIGHTS


def count_crossing(whole: Whole, order: list[int]) -> tuple[list[int], list[int]]:
    """Return how many values are used on both sides of each boundary, and how many of them cannot connect parts.

    Boundary N is before node N of the order.
    """
    counts, barred = [0] * (len(order) + 1), [0] * (len(order) + 1)
    position = {index: number for number, index in enumerate(order)}
    for name, readers in whole.readers.items():
        if name in whole.inputs or whole.maker.get(name) in position:
            users = [position[index] for index in (*readers, whole.maker.get(name)) if index is not None]
            for found in (counts, barred) if name in whole.maker and find_obstacle(whole, name) else (counts,):
                found[min(users, default=0) + 1] += 1
                found[max(users, default=0) + 1] -= 1
    return list(accumulate(counts)), list(accumulate(barred))


def find_obstacle(whole: Whole, name: str) -> str | None:
    """Return why a value cannot connect parts, or None if it can."""
    readers = [whole.graph.node[index] for index in whole.readers[name]]
    made_by = whole.graph.node[whole.maker[name]].op_type
    if made_by == "QuantizeLinear" or any(node.op_type == "DequantizeLinear" and node.input[0] == name for node in readers):
        return "it is between QuantizeLinear and DequantizeLinear"
    if any(name not in node.input for node in readers):
        return "it is read by a subgraph"
    kind = whole.types[name].type.WhichOneof("value") if name in whole.types else None
    return None if kind in (None, "tensor_type") else "it is not a tensor"


def find_equal_parts(sums: list[int], counts: list[int], barred: list[int], parts: int) -> list[int]:
    """Return the boundaries that split the order into parts of about equal weights with few connections. Raises Refused.

    `sums` has the bytes of weights before each boundary. The boundaries minimize the sum of the squares of the parts' sizes, in units
    of an equal part, plus a cost for each connection.
    """
    import numpy as np

    allowed = [place for place in range(1, len(sums) - 1) if not barred[place]]
    if len(allowed) < parts - 1:
        raise step.Refused(f"the model can be split into at most {len(allowed) + 1} parts", "Use a smaller number of 'parts'.")
    places = [0, *allowed, len(sums) - 1]
    sizes = np.array([sums[place] for place in places]) * (parts / sums[-1])
    best = np.array([0.0] + [math.inf] * (len(places) - 1))
    choices = []
    for _ in range(parts):
        choice, least = [0], [math.inf]
        for end in range(1, len(places)):
            costs = best[:end] + (sizes[end] - sizes[:end]) ** 2
            choice.append(int(costs.argmin()))
            least.append(costs[choice[-1]] + CONNECTION_COST * counts[places[end]])
        choices.append(choice)
        best = np.array(least)
    end, found = len(places) - 1, []
    for choice in reversed(choices):
        end = choice[end]
        found.append(places[end])
    return found[-2::-1]


def find_layers(whole: Whole, order: list[int], counts: list[int], barred: list[int], layers: list[int]) -> list[int]:
    """Return the boundaries before the given layers. Raises Refused.

    Each is at or before the layer's first node, where the fewest values cross.
    """
    numbers = [find_layer(whole, index) for index in order]
    known = {number for number in numbers if number is not None}
    if not known:
        message = "no layers were found: no name of a node or initializer contains 'layers.N.', 'layer.N.', 'h.N.' or 'blocks.N.'"
        raise step.Refused(message, "Use 'parts' or 'at'.")
    found = []
    for layer in layers:
        if layer not in known:
            raise step.Refused(f"'layers' has {layer}, but the model has the layers {min(known)} to {max(known)}")
        end = next(place for place, number in enumerate(numbers) if number is not None and number >= layer)
        fixed = (place + 1 for place in reversed(range(end)) if numbers[place] is not None or has_weights(whole, order[place]))
        between = range(next(fixed, 1), end + 1)
        found.append(min(between, key=lambda place: (barred[place], counts[place], -place), default=0))
    check_filled([bisect_right(found, place) for place in range(len(order))], len(layers) + 1)
    return found


def find_layer(whole: Whole, index: int) -> int | None:
    """Return the number of a node's layer, according to the name of the node or of a constant that it reads."""
    constants = [name for name in whole.reads[index] if name in whole.weights or whole.maker.get(name) in whole.constants]
    node = whole.graph.node[index]
    scopes = [entry.value for entry in getattr(node, "metadata_props", ()) if entry.key == SCOPES]
    names = (node.name, *scopes, *constants, *whole.find_weights(index))
    return next((int(found[1]) for found in map(LAYER.search, names) if found), None)


def assign_parts_at(whole: Whole, boundaries: list[list[str]]) -> dict[int, int]:
    """Return the part of each node if parts end at the given values. Raises Refused."""
    nodes = set(whole.nodes)
    made = {name for index in nodes for name in whole.graph.node[index].output}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for part, names in enumerate(boundaries):
        for name in names:
            if name not in made:
                what = "which is a constant or a value that no output needs" if name in whole.maker else "which no node computes"
                raise step.Refused(f"'at' has '{name}', {what}", step.nearest(name, made))
        for index in whole.find_needed(names, nodes):
            last.setdefault(index, part)
        for index in (reader for name in names for reader in whole.readers[name]):
            if index not in last:
                first[index] = part + 1
    parts = place_nodes(whole, first, last)
    check_filled(parts.values(), len(boundaries) + 1)
    return parts


def place_nodes(whole: Whole, first: dict[int, int], last: dict[int, int]) -> dict[int, int]:
    """Return the part of each node, given the first possible part of some nodes and the last possible part of others.

    A node that depends on another part is in the first possible part. Other nodes are in the part of their first reader.
    """
    lowest: dict[int, int] = {}
    highest: dict[int, float] = {}
    parts: dict[int, int] = {}
    for index in whole.nodes:
        lowest[index] = max([first.get(index, 0), *(lowest[maker] for maker in whole.find_makers(index))])
    for index in reversed(whole.nodes):
        reading = min([last.get(index, math.inf), *(highest[reader] for reader in whole.find_readers(index))])
        highest[index] = lowest[index] or reading
    for index in whole.nodes:
        made = [parts[maker] for maker in whole.find_makers(index)]
        follows = highest[index] == math.inf or (made and whole.graph.node[index].op_type == "DequantizeLinear")
        parts[index] = max(made, default=0) if follows else int(highest[index])
    return parts


def check_filled(parts: Collection[int], count: int) -> None:
    """Raise Refused if one of the parts has no nodes."""
    empty = set(range(count)) - set(parts)
    if empty:
        hint = "Name boundaries in the order in which the model computes them, with nodes before and after each boundary."
        raise step.Refused(f"part {min(empty)} would be empty", hint)


# -- Connections -------------------------------------------------------------------------------------------------------


def find_connections(whole: Whole, parts: dict[int, int]) -> dict[str, tuple[int, list[int]]]:
    """Return the values that connect parts: for each value, the part that computes it, and the parts that read it. Raises Refused."""
    found = {}
    for index in whole.nodes:
        for name in filter(None, whole.graph.node[index].output):
            readers = sorted({parts[reader] for reader in whole.readers[name]} - {parts[index]})
            obstacle = find_obstacle(whole, name) if readers else None
            if obstacle:
                raise step.Refused(f"the value '{name}' cannot connect two parts: {obstacle}", "Split the model elsewhere.")
            if readers:
                found[name] = parts[index], readers
    return found


def infer_types(model: Any) -> dict[str, Any]:
    """Return the types that the model declares for values or that ONNX infers, by name."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type in QUANTIZATION:
            node.domain = ""  # ONNX infers nothing of these operators in the domain com.microsoft, which 16-bit models use
    graph = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}


def find_types(whole: Whole, names: Iterable[str]) -> dict[str, Any]:
    """Return the type of each connection. Raises Refused if a type is unknown.

    If sizes are not known in terms of the model's inputs, onnxruntime's symbolic inference runs too, unless it is not installed.
    """
    symbols = {size for value in whole.inputs.values() for size in step.sizes_of(value) or () if isinstance(size, str)} - {"?"}
    found = {name: whole.types[name] for name in names if name in whole.types}
    if any(name not in found or not is_known(found[name], symbols) for name in names):
        found |= {name: value for name, value in infer_symbolically(whole.model).items() if name in names}
    for name in names:
        if name not in found or not found[name].type.tensor_type.elem_type:
            hint = "Add 'infer_shapes: {symbolic: true}' before this step, or split elsewhere."
            raise step.Refused(f"the type of the value '{name}', which connects two parts, is unknown", hint)
    return found


def is_known(value: Any, symbols: Collection[str]) -> bool:
    """Return whether each size of a value is a number or one of the symbols."""
    sizes = step.sizes_of(value)
    return sizes is not None and all(isinstance(size, int) or size in symbols for size in sizes)


def infer_symbolically(model: Any) -> dict[str, Any]:
    """Return the types with known ranks that onnxruntime's symbolic inference finds, or none if it is missing or fails."""
    try:
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

        found = infer_types(SymbolicShapeInference.infer_shapes(model, auto_merge=True))
    except Exception as error:  # noqa: BLE001 - the library raises any exception
        step.log(f"symbolic shape inference is not possible: {error}")
        return {}
    return {name: value for name, value in found.items() if step.sizes_of(value) is not None}


# -- The part ----------------------------------------------------------------------------------------------------------


def extract(whole: Whole, part: int, parts: dict[int, int], connections: list[Any]) -> None:
    """Remove everything from the whole model that is not in one part. `connections` are the types of all connections."""
    graph = whole.graph
    own = {index for index in whole.nodes if parts[index] == part}
    results = [value for value in graph.output if parts.get(whole.maker.get(value.name, -1), 0) == part]
    reads = [name for index in own for name in whole.reads[index]]
    nodes = own | whole.find_needed([*reads, *(value.name for value in results)], whole.constants)
    set_sizes(whole, nodes & whole.constants, [name for name in whole.inputs if name in reads])
    made = {name for index in nodes for name in graph.node[index].output}
    read = {name for index in nodes for name in step.list_read_values(graph.node[index])} | {value.name for value in results}
    names = {value.name for value in results}
    received = [value for value in connections if value.name in read - made]
    passed = [
        value
        for value in connections
        if value.name in made - names and any(parts[index] > part for index in whole.readers[value.name])
    ]
    replace(graph.node, [node for index, node in enumerate(graph.node) if index in nodes])
    replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read])
    replace(graph.sparse_initializer, [tensor for tensor in graph.sparse_initializer if tensor.values.name in read])
    replace(graph.input, [*(value for value in graph.input if value.name in read), *received])
    replace(graph.output, [*results, *passed])
    ends = {value.name for value in (*graph.input, *graph.output)}
    replace(graph.value_info, [value for value in graph.value_info if value.name in made - ends])
    replace(graph.quantization_annotation, [row for row in graph.quantization_annotation if row.tensor_name in read | made])


def set_sizes(whole: Whole, constants: Collection[int], inputs: Collection[str]) -> None:
    """Replace fixed sizes by constants. Read other sizes from equal `inputs`, which the part needs anyway, if there are such inputs."""
    import onnx

    shapes = {name: step.sizes_of(value) or ["?"] for name, value in whole.inputs.items()}
    for index in constants:
        node = whole.graph.node[index]
        if index in whole.sizes:
            value = onnx.helper.make_tensor(node.output[0], onnx.TensorProto.INT64, [len(whole.sizes[index])], whole.sizes[index])
            node.CopyFrom(onnx.helper.make_node("Constant", [], list(node.output), node.name, value=value))
        elif node.input and node.input[0] in whole.inputs and node.input[0] not in inputs and "?" not in shapes[node.input[0]]:
            node.input[0] = next((name for name in inputs if shapes[name] == shapes[node.input[0]]), node.input[0])


def replace(field: Any, items: list[Any]) -> None:
    """Replace the items of a repeated field."""
    del field[:]
    field.extend(items)


def describe_shape(value: Any) -> list[int | str | None] | None:
    """Return the sizes of a value as numbers, names, and None for sizes without a name, or None if the rank is unknown."""
    sizes = step.sizes_of(value)
    return None if sizes is None else [None if size == "?" else size for size in sizes]


def set_metadata(model: Any, content: dict[str, Any]) -> None:
    """Write the part's number, the number of parts, and the model's inputs into the metadata."""
    replace(model.metadata_props, [entry for entry in model.metadata_props if entry.key != METADATA])
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(content)


def log_part(model: Any, title: str, before: str, connections: Collection[str]) -> None:
    """Write the size of a part and its connections to the log."""
    weights = sum(count_bytes(tensor) for tensor in list_weights(model.graph))
    step.log(f"{title}: {len(model.graph.node)} of {before}, {weights:,} bytes of weights")
    for what, values in (("reads from earlier parts", model.graph.input), ("computes for later parts", model.graph.output)):
        names = [value.name for value in values if value.name in connections]
        if names:
            step.log(f"{what}: {', '.join(names)}")


def save(model: Any, request: dict[str, Any]) -> None:
    """Write a part. Copy external data one tensor at a time, because a part may be larger than the memory."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor, set_external_data

    output, folder = request["output"], os.path.dirname(request["source"])  # noqa: PTH120
    large = []
    for tensor in list(step.list_external(model)):
        if step.locate(tensor, folder)[2] < step.MIN_EXTERNAL_BYTES:  # runtimes cannot read shapes from files
            load_external_data_for_tensor(tensor, folder)
        else:
            large.append(tensor)
    if large:
        with open(output + ".data", "wb") as file:  # noqa: PTH123
            for tensor in large:
                loaded = onnx.TensorProto()  # protobuf frees the memory of a cleared field only with the whole message
                loaded.CopyFrom(tensor)
                load_external_data_for_tensor(loaded, folder)
                file.write(bytes(-file.tell() % ALIGNMENT))
                set_external_data(loaded, os.path.basename(file.name), file.tell(), len(loaded.raw_data))  # noqa: PTH119
                file.write(loaded.raw_data)
                loaded.ClearField("raw_data")
                tensor.CopyFrom(loaded)
    onnx.save(model, output)


if __name__ == "__main__":
    step.main(split)

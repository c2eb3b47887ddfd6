"""Excerpts of a model, and copies with inner values as additional outputs.

Nodes are identified by their index in the graph. Constants are nodes that depend only on initializers and on shapes. They belong to no
excerpt: each excerpt has copies of the constants that it needs, because EPs need constant weights and constant shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Types = Mapping[str, ValueInfoProto]
"""Types and sizes of values, by the name of the value."""

_SHAPES = ("Shape", "Size")
_RANDOM = (
    *("Bernoulli", "Dropout", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_MAX_INLINE = 1 << 30
"""Maximum size of a model without external data. Protobuf's limit is twice as large."""
_MAX_SHAPE_DATA = 1 << 16
"""Maximum size of initializers whose values shape inference reads. Shapes and axes are far smaller."""


class ModelGraph:
    """Main graph of a model whose inputs have fixed sizes, for making excerpts."""

    def __init__(self, path: Path, sizes: Mapping[str, int]) -> None:
        """Read a model and its external data. `sizes` has the sizes of open dimensions by name or denotation."""
        self._model = onnx.load(str(path))
        graph = self._model.graph
        # Declared shapes may be those of other input sizes.
        del graph.value_info[:]
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        self.inputs = {value.name: value for value in graph.input if value.name not in self._weights}
        for value in (*graph.input, *graph.output):
            for dimension in value.type.tensor_type.shape.dim:
                if (size := sizes.get(dimension.dim_param, sizes.get(dimension.denotation))) is not None:
                    dimension.dim_value = size
        self.outputs = tuple(value.name for value in graph.output)
        self._maker = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
        known = {*self.inputs, *self._weights, *self._sparse, *self._maker}
        self._reads = [[name for name in _list_reads(node) if name in known] for node in graph.node]
        self._constants = self._find_constants()
        self._sized = {
            index
            for index in self._constants
            if self.node(index).op_type in _SHAPES and not self._is_constant(self._reads[index])
        }
        """Constants that depend on the shape of a value that is not constant."""
        needed = self._find_needed(self.outputs)
        self.nodes = tuple(index for index in range(len(graph.node)) if index in needed and index not in self._constants)
        """Nodes that the outputs need, in topological order, without constants."""
        self.parents = {index: self._list_parents(index) for index in self.nodes}
        """Nodes whose results each node reads, without constants."""

    def node(self, index: int) -> NodeProto:
        return self._model.graph.node[index]

    def get_results(self, index: int) -> list[str]:
        """Return the names of a node's results."""
        return [name for name in self.node(index).output if name]

    def get_maker(self, name: str) -> int | None:
        """Return the node that computes a value. None for constants, inputs and initializers."""
        return index if (index := self._maker.get(name)) in self.parents else None

    def find_node(self, name: str, operator: str) -> int | None:
        """Return the node with this name and operator, or None if there is not exactly one such node."""
        found = [index for index in self.nodes if self.node(index).name == name and get_operator(self.node(index)) == operator]
        return found[0] if len(found) == 1 else None

    def list_inner_values(self) -> list[str]:
        """Return the names of the values that nodes compute, except the model's outputs."""
        return [name for index in self.nodes for name in self.get_results(index) if name not in self.outputs]

    def infer_types(self) -> dict[str, ValueInfoProto]:
        """Return the types of the inputs, and of all values whose type and sizes ONNX can infer without running the model."""
        whole = self._model.graph
        graph = GraphProto(name=whole.name)
        graph.node.extend(whole.node)
        graph.input.extend(whole.input)
        graph.output.extend(whole.output)
        for value in graph.output:
            if value.type.tensor_type.HasField("shape"):  # it may be wrong
                value.type.tensor_type.ClearField("shape")
        graph.sparse_initializer.extend(whole.sparse_initializer)
        for tensor in whole.initializer:
            if tensor.ByteSize() > _MAX_SHAPE_DATA:
                graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            else:
                graph.initializer.append(tensor)
        model = self._make_model(graph)
        try:
            graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        except onnx.shape_inference.InferenceError:  # such as an operator of a domain that the model does not import
            return dict(self.inputs)
        return {**self.inputs, **{value.name: value for value in (*graph.value_info, *graph.output) if _has_sizes(value)}}

    def find_untyped(self, types: Types) -> str | None:
        """Return the first value of unknown type that nodes read, or None."""
        read = {name for names in self._reads for name in names}
        return next(
            (name for index in self.nodes for name in self.get_results(index) if name in read and name not in types), None
        )

    def add_untyped(self, nodes: Iterable[int], types: Types) -> list[int]:
        """Return nodes, and those that compute a value of unknown type for them. An excerpt of these nodes has inputs of known types."""
        found = set(nodes)
        waiting = list(found)
        while waiting:
            for name in self._reads[waiting.pop()]:
                index = self._maker.get(name)
                if index is not None and index not in found and (name not in types or index in self._constants):
                    found.add(index)
                    waiting.append(index)
        return sorted(found - self._constants)

    def save_with_outputs(self, names: Iterable[str], path: Path, types: Types | None = None) -> None:
        """Write a copy of the model with more outputs. If `types` is None, their types are unknown."""
        model = ModelProto()
        model.CopyFrom(self._model)
        for name in names:
            if name not in self.outputs:
                model.graph.output.append(ValueInfoProto(name=name) if types is None else types[name])
        _save(model, path)

    def save_excerpt(self, nodes: Collection[int], types: Types, path: Path) -> None:
        """Write a model of some nodes. `types` has the types of all values that it reads as inputs (see `add_untyped`)."""
        chosen, constants, sized = set(nodes), set[int](), dict[str, Any]()
        waiting = sorted(chosen)
        inputs: dict[str, ValueInfoProto] = {}
        weights: dict[str, Any] = {}
        while waiting:
            for name in self._reads[waiting.pop()]:
                index = self._maker.get(name)
                if name in self._weights or name in self._sparse:
                    weights[name] = self._weights.get(name)
                elif index in self._sized and _has_sizes(types.get(self._reads[index][0], ValueInfoProto())):
                    sized[name] = self._make_shape(index, types)
                elif index in self._constants:
                    if index not in constants:
                        constants.add(index)
                        waiting.append(index)
                elif index not in chosen:
                    inputs[name] = types[name]
        outside = {name for index in self.nodes if index not in chosen for name in self._reads[index]}
        inside = {name for index in chosen for name in self._reads[index]}
        outputs = [
            name
            for index in sorted(chosen)
            for name in self.get_results(index)
            if name in self.outputs or name in outside or name not in inside
        ]
        graph = GraphProto(name="excerpt")
        graph.node.extend(self.node(index) for index in sorted(chosen | constants))
        graph.input.extend(inputs.values())
        graph.output.extend(types.get(name, ValueInfoProto(name=name)) for name in outputs)
        graph.initializer.extend([*(tensor for tensor in weights.values() if tensor is not None), *sized.values()])
        graph.sparse_initializer.extend(self._sparse[name] for name, tensor in weights.items() if tensor is None)
        _save(self._make_model(graph), path)

    def _make_model(self, graph: GraphProto) -> ModelProto:
        model = ModelProto(ir_version=self._model.ir_version, producer_name="epbuild", graph=graph)
        model.opset_import.extend(self._model.opset_import)
        model.functions.extend(self._model.functions)
        return model

    def _find_constants(self) -> set[int]:
        found: set[int] = set()
        known = {*self._weights, *self._sparse}
        for index, node in enumerate(self._model.graph.node):
            if node.domain not in _DOMAINS or node.op_type in _RANDOM or any(_list_subgraphs(node)):
                continue
            if node.op_type in _SHAPES or known.issuperset(self._reads[index]):
                found.add(index)
                known.update(node.output)
        return found

    def _is_constant(self, names: Iterable[str]) -> bool:
        return all(name in self._weights or name in self._sparse or self._maker.get(name) in self._constants for name in names)

    def _make_shape(self, index: int, types: Types) -> TensorProto:
        """Return the result of a Shape or Size node."""
        node, dims = self.node(index), types[self._reads[index][0]].type.tensor_type.shape.dim
        sizes = np.array([dim.dim_value for dim in dims], np.int64)
        chosen = {attribute.name: attribute.i for attribute in node.attribute}
        value = sizes[chosen.get("start", 0) : chosen.get("end")] if node.op_type == "Shape" else sizes.prod()
        return numpy_helper.from_array(np.asarray(value, np.int64), node.output[0])

    def _find_needed(self, names: Iterable[str]) -> set[int]:
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            index = self._maker.get(waiting.pop())
            if index is not None and index not in found:
                found.add(index)
                waiting += self._reads[index]
        return found

    def _list_parents(self, index: int) -> list[int]:
        makers = (self._maker[name] for name in self._reads[index] if name in self._maker)
        return list(dict.fromkeys(maker for maker in makers if maker not in self._constants))


def get_operator(node: NodeProto) -> str:
    """Return a node's operator, with its domain unless it is ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def _list_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            yield from (attribute.g, *attribute.graphs)


def _list_reads(node: NodeProto) -> list[str]:
    """Return the names of the values that a node and its subgraphs read, without duplicates."""
    names = [name for name in node.input if name]
    for graph in _list_subgraphs(node):
        own = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
        own |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in _list_reads(inner)]
        names += [name for name in (*read, *(value.name for value in graph.output)) if name not in own]
    return list(dict.fromkeys(names))


def get_types(values: Arrays) -> dict[str, ValueInfoProto]:
    """Return the types of arrays."""
    types = {}
    for name, value in values.items():
        dtype = np.dtype(object) if value.dtype.kind == "U" else value.dtype
        types[name] = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), value.shape)
    return types


def _has_sizes(value: ValueInfoProto) -> bool:
    """Return whether a value is a tensor of known type and sizes."""
    tensor = value.type.tensor_type
    return bool(tensor.elem_type) and tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _save(model: ModelProto, path: Path) -> None:
    """Write a model. Its initializers become external data beside it if the model is large."""
    large = model.ByteSize() > _MAX_INLINE
    onnx.save(model, str(path), save_as_external_data=large, location=f"{path.name}.data" if large else None)

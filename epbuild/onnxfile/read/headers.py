"""Reader of model headers: the declarations, counts and references of a graph.

The reader seeks over every weight, so that it needs 13 MB where the onnx package needs 1,066 MB. Node counts and EPContext
nodes cover the main graph and the subgraphs in its nodes' attributes. They exclude bodies of model-local functions and
training graphs. External data is also found in function bodies.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

from epbuild.core.safepath import open_raw
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.epcontext import DOMAIN, OP_TYPE, EPContextNode, read_node
from epbuild.onnxfile.read.model_header import (
    Dimension,
    ExternalData,
    Initializer,
    ModelHeader,
    NamedNode,
    TensorBytes,
    ValueInfo,
    format_operator,
)
from epbuild.onnxfile.read.wire import LENGTH_DELIMITED, Field, MalformedModel, WireReader, read_integer

_MODEL_FIELDS = frozenset({proto.MODEL_IR_VERSION, proto.MODEL_PRODUCER_NAME, proto.MODEL_GRAPH}) | {
    proto.MODEL_OPSET_IMPORT, proto.MODEL_METADATA_PROPS, proto.MODEL_FUNCTIONS,
}  # fmt: skip
_SUBGRAPH_FIELDS = frozenset({proto.GRAPH_NODE, proto.GRAPH_INITIALIZER, proto.GRAPH_SPARSE_INITIALIZER})
_GRAPH_FIELDS = _SUBGRAPH_FIELDS | {proto.GRAPH_NAME, proto.GRAPH_INPUT, proto.GRAPH_OUTPUT}
_NODE_FIELDS = frozenset({proto.NODE_OP_TYPE, proto.NODE_ATTRIBUTE, proto.NODE_DOMAIN})
_FUNCTION_FIELDS = frozenset({proto.FUNCTION_NODE})
_VALUE_FIELDS = frozenset({proto.VALUE_NAME, proto.VALUE_TYPE})
_SHAPE_FIELDS = frozenset({proto.SHAPE_DIMENSION})
_OPSET_FIELDS = frozenset({proto.OPSET_DOMAIN, proto.OPSET_VERSION})
_PAIR_FIELDS = frozenset({proto.PAIR_KEY, proto.PAIR_VALUE})
_TENSOR_TYPE_FIELDS = frozenset({proto.TENSOR_TYPE_ELEM_TYPE, proto.TENSOR_TYPE_SHAPE})
_DIMENSION_FIELDS = frozenset({proto.DIMENSION_VALUE, proto.DIMENSION_PARAM, proto.DIMENSION_DENOTATION})
_ATTRIBUTE_FIELDS = proto.ATTRIBUTE_TENSORS | proto.ATTRIBUTE_GRAPHS | proto.ATTRIBUTE_SPARSE_TENSORS
_TENSOR_FIELDS = proto.TENSOR_VALUES | {
    proto.TENSOR_DIMS, proto.TENSOR_DATA_TYPE, proto.TENSOR_NAME, proto.TENSOR_EXTERNAL_DATA, proto.TENSOR_DATA_LOCATION,
}  # fmt: skip

# Packed values of these fields have the same bytes as raw data and external data. Integer fields have varints instead.
_PLAIN = frozenset({proto.TENSOR_FLOAT_DATA, proto.TENSOR_RAW_DATA, proto.TENSOR_DOUBLE_DATA})

# Before this IR version, every initializer had to be an input, and ONNX Runtime treats it as a constant.
_OVERRIDABLE = 4
# Protobuf readers reject messages that are nested deeper. This reader must not exhaust its stack on such a file.
MAX_DEPTH = 100
# No model has so many items of one kind. Without a limit, every two bytes of a broken file could use a hundred bytes of
# memory.
_MAX_COUNT = 500_000
# Smaller files are read in one call.
_SMALL_BYTES = 1 << 14
_LFS_POINTER = b"version https://git-lfs"
_MIN_LINE_FEEDS = 4
_CONVERTED_BY_GIT = (
    "Git converted the line endings for Windows: add `*.onnx binary` to .gitattributes and check out the file again"
)
_ENCRYPTED = "it is encrypted. Run `epbuild decrypt` on its folder, and use the result"
_EP_CONTEXT: Final = (DOMAIN, OP_TYPE)


def read_header(path: Path, *, name_nodes: bool = False) -> ModelHeader:
    """Read the header of the model file at `path` without its weights. With `name_nodes`, also read the names of its nodes.

    Raises MalformedModel if the file is not a complete ONNX model. Raises OSError if the file cannot be read.
    """
    with open_raw(path) as file:
        data = file.read(_SMALL_BYTES)
        is_small = len(data) < _SMALL_BYTES and not file.read(1)
        try:
            return parse_header(io.BytesIO(data) if is_small else io.BufferedReader(file), name_nodes=name_nodes)
        except MalformedModel as error:
            if _is_encrypted(data):
                raise MalformedModel(_ENCRYPTED) from error
            if _has_windows_line_endings(data):
                raise MalformedModel(f"{error}. {_CONVERTED_BY_GIT}") from error
            raise


def _is_encrypted(data: bytes) -> bool:
    from epbuild.runtime.encryption import MAGIC  # few files are no models

    return data.startswith(MAGIC)


def _has_windows_line_endings(data: bytes) -> bool:
    """Return whether a Git checkout replaced every line feed with CR and LF. All ONNX files contain line feeds."""
    line_feeds = data.count(b"\n")
    return line_feeds >= _MIN_LINE_FEEDS and line_feeds == data.count(b"\r\n")


def parse_header(file: BinaryIO, *, name_nodes: bool = False) -> ModelHeader:
    """Read the header of a model from the seekable `file`, which contains only the model. Raises MalformedModel."""
    wire = WireReader(file)
    _reject_other_files(file, wire.size)
    data = _TensorData()
    graph = _MainGraph(wire, data, name_nodes=name_nodes)
    ir_version = 0
    producer_name = ""
    opsets: dict[str, int] = {}
    metadata: dict[str, str] = {}
    has_graph = False
    for field in wire.fields(0, wire.size, _MODEL_FIELDS):
        if field.number == proto.MODEL_GRAPH:
            has_graph = True
            graph.read(field)
        elif field.number == proto.MODEL_IR_VERSION:
            ir_version = read_integer(field)
        elif field.number == proto.MODEL_PRODUCER_NAME:
            producer_name = wire.text(field)
        elif field.number == proto.MODEL_OPSET_IMPORT:
            opsets.update([_read_opset(wire, field)])
        elif field.number == proto.MODEL_METADATA_PROPS:
            metadata.update([_read_pair(wire, field)])
        else:
            functions = _Nodes(wire, data)
            for node in wire.message(field, _FUNCTION_FIELDS):
                functions.read_node((field,), node)
    if not has_graph:
        raise MalformedModel("no graph was found: this is not an ONNX model")
    return ModelHeader(
        ir_version=ir_version,
        producer_name=producer_name,
        opsets=opsets,
        metadata=metadata,
        graph_name=graph.name,
        inputs=tuple(value for value in graph.inputs if value.name not in graph.initialized),
        outputs=tuple(graph.outputs),
        overridable=tuple(value.name for value in graph.inputs if value.name in graph.initialized and ir_version >= _OVERRIDABLE),
        initializers=tuple(graph.initializers),
        operators=graph.operators,
        ep_context_nodes=tuple(graph.contexts),
        external_data=data.needed,
        subgraph_data=frozenset(data.in_subgraphs),
        other_nodes=tuple(graph.named),
        initialized_inputs=tuple(value for value in graph.inputs if value.name in graph.initialized),
        tensors=tuple(data.tensors),
    )


def read_tensor(wire: WireReader, tensor: Field) -> TensorBytes:
    """Read the TensorProto in the field `tensor`, without its values. Raises MalformedModel."""
    name = ""
    start = end = 0
    plain = False
    elem_type = inline_bytes = data_location = 0
    dims: list[int] = []
    entries: dict[str, str] = {}
    for field in wire.message(tensor, _TENSOR_FIELDS):
        if field.number in proto.TENSOR_VALUES:
            # Only a single field has the tensor's bytes in one piece, because readers concatenate several fields.
            plain = not end and field.number in _PLAIN and field.wire_type == LENGTH_DELIMITED
            start, end = start or field.start, field.end
            inline_bytes += field.size
        elif field.number == proto.TENSOR_DIMS:
            dims.extend(wire.integers(field))
        elif field.number == proto.TENSOR_DATA_TYPE:
            elem_type = read_integer(field)
        elif field.number == proto.TENSOR_NAME:
            name = wire.text(field)
        elif field.number == proto.TENSOR_DATA_LOCATION:
            data_location = read_integer(field)
        else:
            entries.update([_read_pair(wire, field)])
    external = _parse_external_data(name, entries, tensor) if data_location == proto.EXTERNAL else None
    header = Initializer(name, elem_type, tuple(dims), inline_bytes, external)
    return TensorBytes(header, tensor.tag_at, start, end, plain)


class _TensorData:
    """All tensors of a model, and its external data files: the bytes needed from each file, and the files that subgraphs need."""

    def __init__(self) -> None:
        self.tensors: list[TensorBytes] = []
        self.needed: dict[str, int] = {}
        self.in_subgraphs: set[str] = set()

    def add(self, tensor: TensorBytes, *, in_subgraph: bool) -> None:
        self.tensors.append(tensor)
        data = tensor.tensor.external
        if data is None:
            return
        self.needed[data.location] = max(data.offset + (data.length or 0), self.needed.get(data.location, 0))
        if in_subgraph:
            self.in_subgraphs.add(data.location)


class _Nodes:
    """Reader of nodes, and of the subgraphs and tensors in them. `data` collects the tensors."""

    def __init__(self, wire: WireReader, data: _TensorData, *, name_nodes: bool = False) -> None:
        self.wire = wire
        self.data = data
        self.name_nodes = name_nodes
        self.node_fields = _NODE_FIELDS | {proto.NODE_NAME} if name_nodes else _NODE_FIELDS
        self.named: list[NamedNode] = []
        self.depth = 0
        self.operators: Counter[tuple[str, str]] = Counter()
        self.contexts: list[EPContextNode] = []

    def read_node(self, path: tuple[Field, ...], node: Field) -> None:
        wire = self.wire
        name = domain = op_type = ""
        for field in wire.message(node, self.node_fields):
            if field.number == proto.NODE_OP_TYPE:
                op_type = wire.text(field)
            elif field.number == proto.NODE_NAME:
                name = wire.text(field)
            elif field.number == proto.NODE_DOMAIN:
                domain = wire.text(field)
            else:
                for value in wire.message(field, _ATTRIBUTE_FIELDS):
                    if value.number in proto.ATTRIBUTE_TENSORS:
                        self.read_tensor(value)
                    elif value.number in proto.ATTRIBUTE_GRAPHS:
                        self._read_subgraph((*path, node, field, value))
                    else:
                        self.read_sparse_tensor(value)
        self.operators[domain, op_type] += 1
        _limit_count(self.operators, node)
        if (domain, op_type) == _EP_CONTEXT:
            self.contexts.append(read_node(wire, (*path, node)))
            _limit_count(self.contexts, node)
        elif self.name_nodes:
            self.named.append(NamedNode(name, format_operator(domain, op_type)))
            _limit_count(self.named, node)

    def read_tensor(self, tensor: Field) -> Initializer:
        read = read_tensor(self.wire, tensor)
        self.data.add(read, in_subgraph=self.depth > 0)
        _limit_count(self.data.tensors, tensor)
        return read.tensor

    def read_sparse_tensor(self, tensor: Field) -> str:
        """Read a SparseTensorProto without its values. Return its name, which is stored in the tensor of its values."""
        name = ""
        for part in self.wire.message(tensor, proto.SPARSE_TENSOR_PARTS):
            read = self.read_tensor(part)
            if part.number == proto.SPARSE_TENSOR_VALUES:
                name = read.name
        return name

    def _read_subgraph(self, path: tuple[Field, ...]) -> None:
        if len(path) > MAX_DEPTH:
            raise MalformedModel("subgraphs are nested deeper than protobuf allows", path[-1].tag_at)
        self.depth += 1
        for field in self.wire.message(path[-1], _SUBGRAPH_FIELDS):
            if field.number == proto.GRAPH_NODE:
                self.read_node(path, field)
            elif field.number == proto.GRAPH_INITIALIZER:
                self.read_tensor(field)
            else:
                self.read_sparse_tensor(field)
        self.depth -= 1


class _MainGraph(_Nodes):
    """Reader of the main graph. Protobuf allows a message to be split into several pieces, which are merged."""

    def __init__(self, wire: WireReader, data: _TensorData, *, name_nodes: bool = False) -> None:
        super().__init__(wire, data, name_nodes=name_nodes)
        self.name = ""
        self.inputs: list[ValueInfo] = []
        self.outputs: list[ValueInfo] = []
        self.initializers: list[Initializer] = []
        self.initialized: set[str] = set()

    def read(self, graph: Field) -> None:
        wire = self.wire
        for field in wire.message(graph, _GRAPH_FIELDS):
            if field.number == proto.GRAPH_NODE:
                self.read_node((graph,), field)
            elif field.number == proto.GRAPH_INITIALIZER:
                initializer = self.read_tensor(field)
                self.initializers.append(initializer)
                self.initialized.add(initializer.name)
            elif field.number == proto.GRAPH_SPARSE_INITIALIZER:
                self.initialized.add(self.read_sparse_tensor(field))
            elif field.number == proto.GRAPH_INPUT:
                self.inputs.append(_read_value_info(wire, field))
                _limit_count(self.inputs, field)
            elif field.number == proto.GRAPH_OUTPUT:
                self.outputs.append(_read_value_info(wire, field))
                _limit_count(self.outputs, field)
            else:
                self.name = wire.text(field)


def _limit_count(found: Sized, last: Field) -> None:
    if len(found) > _MAX_COUNT:
        raise MalformedModel(f"the model has more than {_MAX_COUNT:,} items of one kind", last.tag_at)


def _reject_other_files(file: BinaryIO, size: int) -> None:
    if size == 0:
        raise MalformedModel("the file is empty")
    file.seek(0)
    if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
        raise MalformedModel("this is a Git LFS pointer to a model, not the model: fetch it with `git lfs pull`")


def _read_value_info(wire: WireReader, value: Field) -> ValueInfo:
    data = wire.short(value)
    if data is not None:
        with suppress(MalformedModel):  # The error is raised again below, with its position in the file.
            return _parse_value_info(data)
    return _read_value_fields(wire, wire.message(value, _VALUE_FIELDS))


@lru_cache(maxsize=4096)  # Many models have inputs and outputs with the same names and shapes.
def _parse_value_info(data: bytes) -> ValueInfo:
    wire = WireReader(io.BytesIO(data))
    return _read_value_fields(wire, wire.fields(0, wire.size, _VALUE_FIELDS))


def _read_value_fields(wire: WireReader, fields: Iterable[Field]) -> ValueInfo:
    name = ""
    elem_type = 0
    shape: tuple[Dimension, ...] | None = None
    denotations: tuple[str, ...] = ()
    for field in fields:
        if field.number == proto.VALUE_NAME:
            name = wire.text(field)
            continue
        for kind in wire.message(field, proto.TYPES_WITH_SHAPE):
            for part in wire.message(kind, _TENSOR_TYPE_FIELDS):
                if part.number == proto.TENSOR_TYPE_ELEM_TYPE:
                    elem_type = read_integer(part)
                else:
                    dimensions = [_read_dimension(wire, dim) for dim in wire.message(part, _SHAPE_FIELDS)]
                    shape = tuple(size for size, _ in dimensions)
                    denotations = tuple(denotation for _, denotation in dimensions)
    return ValueInfo(name, elem_type, shape, denotations if any(denotations) else ())


def _read_dimension(wire: WireReader, dimension: Field) -> tuple[Dimension, str]:
    """Return the size and the denotation of a dimension."""
    size: Dimension = None
    denotation = ""
    for field in wire.message(dimension, _DIMENSION_FIELDS):
        if field.number == proto.DIMENSION_DENOTATION:
            denotation = wire.text(field)
        elif field.number == proto.DIMENSION_PARAM:
            size = wire.text(field) or None
        else:
            number = read_integer(field)
            size = number if number >= 0 else None  # Paddle's exporters write -1 for an unknown size.
    return size, denotation


def _read_opset(wire: WireReader, opset: Field) -> tuple[str, int]:
    domain = ""
    version = 0
    for field in wire.message(opset, _OPSET_FIELDS):
        if field.number == proto.OPSET_DOMAIN:
            domain = wire.text(field)
        else:
            version = read_integer(field)
    return domain, version


def _read_pair(wire: WireReader, pair: Field) -> tuple[str, str]:
    texts = {field.number: wire.text(field) for field in wire.message(pair, _PAIR_FIELDS)}
    return texts.get(proto.PAIR_KEY, ""), texts.get(proto.PAIR_VALUE, "")


def _parse_external_data(name: str, entries: Mapping[str, str], tensor: Field) -> ExternalData:
    location = entries.get("location")
    if not location:
        raise MalformedModel(f"the external tensor '{name}' names no file", tensor.tag_at)
    counts: dict[str, int] = {}
    for key in ("offset", "length"):
        text = entries.get(key)
        if text is None:
            continue
        # Stricter than int(), which accepts '1_0' and ' 10 ', and raises a different error for very long numbers.
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise MalformedModel(f"the {key} of the external tensor '{name}' is not a byte count: {text[:40]!r}", tensor.tag_at)
        counts[key] = int(text)
    return ExternalData(location, counts.get("offset", 0), counts.get("length"))

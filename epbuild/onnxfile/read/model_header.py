"""Header of a model, and the types of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from epbuild.onnxfile.read.epcontext import EPContextNode

Dimension = int | str | None
_NAMELESS = frozenset({"?", "-1", "None"})


class ExternalData(Struct, frozen=True):
    """Position of a tensor's bytes outside the model: a relative path, an offset, and a length (None: to the end of the file)."""

    location: str
    offset: int = 0
    length: int | None = None


class ValueInfo(NamedTuple):
    """Input or output of a graph.

    `elem_type` is ONNX's TensorProto.DataType, or 0 for values that are not tensors. A dimension is a size, the name of a
    symbol, or None if it is unknown or written as a negative size. `shape` is None if the rank is unknown or the value is
    not a tensor. `denotations` has the meaning of each dimension, such as DATA_BATCH. A dimension without a
    meaning has an empty text. The tuple is empty if no dimension has a meaning.
    """

    name: str
    elem_type: int
    shape: tuple[Dimension, ...] | None
    denotations: tuple[str, ...] = ()


class Initializer(Struct, frozen=True):
    """Dense initializer. `inline_bytes` is the size of its values inside the model file."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    inline_bytes: int
    external: ExternalData | None


class TensorBytes(NamedTuple):
    """Tensor anywhere in a model, with the position of its inline values in the file. The tensor begins at `tag_at`.

    `plain` values have the layout of raw data. Fields that enclose the tensor are not kept, because a malicious file can
    have 500,000 tensors.
    """

    tensor: Initializer
    tag_at: int
    start: int
    end: int
    plain: bool


class NamedNode(NamedTuple):
    """Name of a node, which can be empty, and the node's operator."""

    name: str
    operator: str


class ModelHeader(Struct, frozen=True):
    """Declarations of an ONNX model.

    `inputs` excludes inputs that are also initializers. `operators` counts nodes by (domain, op_type) as written.

    `external_data` maps each external data file to the number of its bytes that tensors need. Files are in order of first
    appearance, and tensors anywhere in the model count. `subgraph_data` has the files that a tensor in a subgraph uses,
    such as a branch of an If. ONNX Runtime rejects such a file if it has a second hard link (docs/internals/facts.md).
    """

    ir_version: int
    producer_name: str
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    graph_name: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    initializers: tuple[Initializer, ...]
    operators: Mapping[tuple[str, str], int]
    ep_context_nodes: tuple[EPContextNode, ...]
    external_data: Mapping[str, int]
    overridable: tuple[str, ...]
    """Initializers that are also inputs, so that users of the model can feed another value. Empty before IR version 4."""
    subgraph_data: frozenset[str]
    other_nodes: tuple[NamedNode, ...] = ()
    """Nodes that are not EPContext nodes, if their names were requested."""
    initialized_inputs: tuple[ValueInfo, ...] = ()
    """Inputs that `inputs` excludes, because they are also initializers."""
    tensors: tuple[TensorBytes, ...] = ()
    """All tensors in file order, including tensors in subgraphs, functions and attributes."""

    @property
    def declarations(self) -> ModelHeader:
        """Copy without positions in the file and without unread attributes, for comparison with the header of another file."""
        return replace(self, ep_context_nodes=tuple(node.declaration for node in self.ep_context_nodes), tensors=())

    @property
    def external_locations(self) -> tuple[str, ...]:
        return tuple(self.external_data)

    @property
    def is_compiled(self) -> bool:
        return bool(self.ep_context_nodes)

    @property
    def remaining_nodes(self) -> int:
        """Number of nodes that are not EPContext nodes, in all graphs."""
        return sum(self.operators.values()) - len(self.ep_context_nodes)


def format_operator(domain: str, op_type: str) -> str:
    """Return an operator's name for users. The domain is included unless it is ONNX's own."""
    return f"{domain}::{op_type}" if domain not in ("", "ai.onnx") else op_type


def get_symbol(dimension: Dimension) -> str | None:
    """Return the name of an open dimension. Dimensions with the same name have the same size.

    Return None for a size, and for placeholders of exporters: Paddle writes '?' for every open dimension of a model.
    """
    return dimension if isinstance(dimension, str) and dimension not in _NAMELESS else None

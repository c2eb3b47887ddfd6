"""The header of a model as a value: what its graph declares, counts and refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from epbuild.onnxfile.read.epcontext import EPContextNode

Dimension = int | str | None
_NAMELESS = frozenset({"?", "-1", "None"})


class ExternalData(Struct, frozen=True):
    """Where a tensor's bytes lie outside the model: a path relative to it, an offset in bytes, and how many (None: to the end)."""

    location: str
    offset: int = 0
    length: int | None = None


class ValueInfo(NamedTuple):
    """A graph input or output.

    `elem_type` is ONNX's TensorProto.DataType; 0, with no shape, for what is not a tensor. A dimension is a size, a symbol's name,
    or None for an unknown one, also where a size below 0 is written; the shape is None where even the rank is unknown.
    `denotations` has the meaning of each dimension, such as DATA_BATCH, or an empty text; it is empty where none has any.
    """

    name: str
    elem_type: int
    shape: tuple[Dimension, ...] | None
    denotations: tuple[str, ...] = ()


class Initializer(NamedTuple):
    """A dense initializer of the main graph; `inline_bytes` is what its values take up in the model file itself."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    inline_bytes: int
    external: ExternalData | None


class TensorBytes(NamedTuple):
    """A tensor, wherever in the model it is, and where its values lie in the model file, if any do; `plain`: as raw data has them.

    `tag_at` is where in the file the tensor begins.
    """

    tensor: Initializer
    tag_at: int
    start: int
    end: int
    plain: bool


class NamedNode(NamedTuple):
    """A node by its name, which is empty where it has none, and its operator, with the domain where that is not ONNX's own."""

    name: str
    operator: str


@dataclass(frozen=True)
class ModelHeader:
    """What an ONNX model declares about itself.

    `inputs` leaves out those that are initializers too. `operators` counts nodes by (domain, op_type) as written.
    `external_data` has the distinct files that hold tensors' data, in order of first appearance, wherever in the model such a
    tensor is, and how many bytes of each the tensors are known to need. `subgraph_data` has those of them that a tensor in a subgraph, such
    as a branch of an If, lies in: ONNX Runtime refuses such a file where it has a second name (docs/facts.md).
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
    """The initializers that are inputs too, so that the user of the model may feed another value: from IR version 4 on."""
    subgraph_data: frozenset[str]
    other_nodes: tuple[NamedNode, ...] = ()
    """The nodes that are not EPContext nodes, where their names were asked for."""
    initialized_inputs: tuple[ValueInfo, ...] = ()
    """The inputs that `inputs` leaves out."""
    tensors: tuple[TensorBytes, ...] = field(default=(), repr=False, compare=False)
    """Every tensor, in the order of the file: those of subgraphs, of functions and of attributes as well."""

    @property
    def external_locations(self) -> tuple[str, ...]:
        return tuple(self.external_data)

    @property
    def is_compiled(self) -> bool:
        return bool(self.ep_context_nodes)

    @property
    def remaining_nodes(self) -> int:
        """How many nodes, in all graphs, are not EPContext nodes."""
        return sum(self.operators.values()) - len(self.ep_context_nodes)


def operator_name(domain: str, op_type: str) -> str:
    """An operator as people write it: with its domain where that is not ONNX's own."""
    return f"{domain}::{op_type}" if domain not in ("", "ai.onnx") else op_type


def symbol(dimension: Dimension) -> str | None:
    """The name of an open dimension, which has one size wherever it is; None for a size, and for what exporters write where they know
    no name: Paddle writes '?' for every such dimension of a model.
    """
    return dimension if isinstance(dimension, str) and dimension not in _NAMELESS else None

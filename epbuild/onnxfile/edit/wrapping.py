"""Wrapping: EPContext models for the graphs of an existing context binary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from epbuild.core.errors import ChangeRefused, Problem
from epbuild.core.safepath import BadReference, check_reference, resolve_links
from epbuild.core.shown import format_path
from epbuild.onnxfile.edit.staging import drafts, publish, split_destination, stage
from epbuild.onnxfile.read.epcontext import DOMAIN, OP_TYPE
from epbuild.onnxfile.read.headers import read_header

if TYPE_CHECKING:
    import onnx

_OPSET = 21  # the first opset whose QuantizeLinear supports 16 bits
_IR_VERSION = 10
_MAX_NAME = 100
_TYPES = {"float32": "float", "float64": "double"}
"""Names of types in TensorProto that differ from NumPy's."""
_QUANTIZABLE = frozenset({"int8", "uint8", "int16", "uint16"})

ElementType = Literal[
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool"
]


class ContextValue(Struct, frozen=True, kw_only=True):
    """Input or output of a graph in a context binary."""

    name: str
    type: ElementType
    """Type of the elements in memory."""
    shape: tuple[int | None, ...]
    """Sizes. None stands for a size that can vary."""
    quantized: bool = False
    """True if the elements stand for real numbers, as integers."""
    scale: float | None = None
    """Scale of quantized elements. None if one scale and zero point do not describe the quantization."""
    zero_point: int = 0


class ContextGraph(Struct, frozen=True):
    """Graph in a context binary."""

    name: str
    inputs: tuple[ContextValue, ...]
    outputs: tuple[ContextValue, ...]


class ContextDescription(Struct, frozen=True):
    """Graphs of a context binary, and the version of the SDK that wrote it."""

    sdk: str
    graphs: tuple[ContextGraph, ...]


class WrappedGraph(Struct, frozen=True):
    """EPContext model that was written for a graph."""

    name: str
    """Name of the graph."""
    model: Path
    inputs: tuple[ContextValue, ...]
    """Inputs of the model."""
    outputs: tuple[ContextValue, ...]
    """Outputs of the model."""


class Wrapped(Struct, frozen=True):
    """EPContext models of a context binary."""

    binary: Path
    """Context binary that the models refer to."""
    sdk: str
    graphs: tuple[WrappedGraph, ...]


def wrap_binary(
    binary: Path, described: ContextDescription, source: str, output: Path | None, *, quantized_io: bool = False
) -> Wrapped:
    """Write an EPContext model for each graph of `binary`, and return the models.

    `source` is the `source` of the nodes. `output` is a folder, to which the binary is copied too, or the `.onnx` file for a single
    graph. If it is None, the models are written beside the binary. Quantized inputs and outputs become float32, with QuantizeLinear
    and DequantizeLinear around the node, unless `quantized_io` is set.

    Raises ChangeRefused (EPB624, EPB668) if a graph or a name is unsuitable, or a file exists. Nothing is written after an error.
    """
    try:
        check_reference(binary.name)
    except BadReference as error:
        raise ChangeRefused(Problem("EPB624", str(error))) from error
    _check_graphs(binary, described.graphs)
    folder, file_name = split_destination(output, binary.parent)
    if file_name is not None and len(described.graphs) > 1:
        held = f"the {len(described.graphs)} graphs of {format_path(binary)}"
        message = f"{format_path(folder / file_name)} cannot hold {held}"
        raise ChangeRefused(Problem("EPB624", message, None, "Name a folder: each graph becomes a model."))
    names = _name_models(binary, described.graphs) if file_name is None else [file_name]
    wrapped = []
    copied = [] if resolve_links(folder) == resolve_links(binary.parent) else [binary.name]
    with drafts(folder, [*copied, *names]) as draft_folder:
        for graph, name in zip(described.graphs, names, strict=True):
            model, inputs, outputs = _build_model(graph, binary.name, source, described.sdk, quantized_io=quantized_io)
            (draft_folder / name).write_bytes(model.SerializeToString(deterministic=True))
            read_header(draft_folder / name)
            wrapped.append(WrappedGraph(graph.name, folder / name, inputs, outputs))
        for file in copied:
            stage(binary, draft_folder / file, link=False)
        publish(draft_folder, folder, [*copied, *names])
    return Wrapped(folder / binary.name, described.sdk, tuple(wrapped))


def _check_graphs(binary: Path, graphs: Sequence[ContextGraph]) -> None:
    if not graphs:
        raise ChangeRefused(Problem("EPB668", f"{format_path(binary)} contains no graph"))
    for graph in graphs:
        values = [value.name for value in (*graph.inputs, *graph.outputs)]
        if not graph.name or not graph.outputs or "" in values or len(set(values)) < len(values):
            place = f"the graph '{graph.name}' in {format_path(binary)}"
            raise ChangeRefused(Problem("EPB668", f"{place} has no name, no outputs, or values with equal or empty names"))
    if len({graph.name for graph in graphs}) < len(graphs):
        raise ChangeRefused(Problem("EPB668", f"several graphs in {format_path(binary)} have the same name"))


def _name_models(binary: Path, graphs: Sequence[ContextGraph]) -> list[str]:
    """Return a file name for the model of each graph: after the binary if there is one graph, otherwise after the graph."""
    if len(graphs) == 1:
        return [f"{binary.stem}_ctx.onnx"]
    names: dict[str, str] = {}
    for graph in graphs:
        stem = re.sub(r"[^A-Za-z0-9_.-]", "_", graph.name)[:_MAX_NAME].lstrip(".") or "graph"
        others = {name.casefold() for name in names.values()}
        numbered = [stem, *(f"{stem}_{number}" for number in range(2, len(graphs) + 1))]
        names[graph.name] = next(name for name in numbered if name.casefold() not in others)
    return [f"{name}_ctx.onnx" for name in names.values()]


def _build_model(
    graph: ContextGraph, reference: str, source: str, sdk: str, *, quantized_io: bool
) -> tuple[onnx.ModelProto, tuple[ContextValue, ...], tuple[ContextValue, ...]]:
    """Return the EPContext model of a graph, with the inputs and the outputs of the model."""
    from onnx import helper

    taken = {value.name for value in (*graph.inputs, *graph.outputs)}
    inner: list[ContextValue] = []
    constants: list[onnx.TensorProto] = []

    def convert(value: ContextValue, operator: str, nodes: list[onnx.NodeProto]) -> ContextValue:
        """Return the model's input or output for a value of the graph. Add the node that quantizes or dequantizes it, if any."""
        if quantized_io or value.scale is None or value.type not in _QUANTIZABLE:
            return value
        # The names of ONNX Runtime's gen_qnn_ctx_onnx_model.py. The node's own values must keep the names in the binary.
        real, scale, zero = (_find_free_name(f"{value.name}{suffix}", taken) for suffix in ("_dq", "_scale", "_zp"))
        inner.append(value)
        constants.append(helper.make_tensor(scale, _get_type("float32"), [], [value.scale]))
        constants.append(helper.make_tensor(zero, _get_type(value.type), [], [value.zero_point]))
        given, made = (real, value.name) if operator == "QuantizeLinear" else (value.name, real)
        nodes.append(helper.make_node(operator, [given, scale, zero], [made], name=f"{operator}_{value.name}"))
        return ContextValue(name=real, type="float32", shape=value.shape)

    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    inputs = tuple(convert(value, "QuantizeLinear", before) for value in graph.inputs)
    outputs = tuple(convert(value, "DequantizeLinear", after) for value in graph.outputs)
    node = helper.make_node(
        OP_TYPE,
        [value.name for value in graph.inputs],
        [value.name for value in graph.outputs],
        name=graph.name,  # EPs find a graph in a context of several graphs by the name of its node.
        domain=DOMAIN,
        main_context=1,
        embed_mode=0,
        ep_cache_context=reference,
        ep_sdk_version=sdk,
        partition_name=graph.name,
        source=source,
    )
    values = (list(map(_make_value, group)) for group in (inputs, outputs))
    body = helper.make_graph([*before, node, *after], graph.name, *values, constants, value_info=list(map(_make_value, inner)))
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(body, producer_name="epbuild", opset_imports=opsets, ir_version=_IR_VERSION)
    return model, inputs, outputs


def _make_value(value: ContextValue) -> onnx.ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(value.name, _get_type(value.type), value.shape)


def _get_type(name: str) -> int:
    from onnx import TensorProto

    return int(TensorProto.DataType.Value(_TYPES.get(name, name).upper()))


def _find_free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name

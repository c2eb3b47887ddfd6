"""Copies of models whose inputs have fixed sizes.

A symbol with a fixed size is replaced everywhere: in inputs, outputs and declared shapes of inner values, even in
subgraphs. The graph and its weights are copied in chunks, so that memory does not grow with their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from epbuild.onnxfile.edit.splice import Splice, splice
from epbuild.onnxfile.read import proto
from epbuild.onnxfile.read.headers import parse_header, read_header
from epbuild.onnxfile.read.model_header import Dimension, ModelHeader
from epbuild.onnxfile.read.sizes import Shape, bind_symbols
from epbuild.onnxfile.read.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer, read_integer

_GRAPH_FIELDS = frozenset({proto.GRAPH_NODE, proto.GRAPH_INPUT, proto.GRAPH_OUTPUT, proto.GRAPH_VALUE_INFO})
_NODE_FIELDS = frozenset({proto.NODE_OUTPUT, proto.NODE_ATTRIBUTE, proto.NODE_DOMAIN})
_DIM_SIZE = frozenset({proto.DIMENSION_VALUE, proto.DIMENSION_PARAM})

# ONNX Runtime infers the shapes of values that operators of these domains compute.
_INFERRED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


def fix_sizes(source: Path, destination: Path, shapes: Mapping[str, Shape]) -> None:
    """Copy the model `source` to `destination` with the input `shapes` that `fit_sizes` returned.

    A declared shape without an open dimension may be stale: the inputs may have had another size when it was declared. ONNX
    Runtime prefers the declared shape to the inferred shape, and an EP then finds no shape at all. Such sizes are removed,
    except for values that an operator of an unknown domain computes. The shape of such a value is only known from its
    declaration.

    Raises FileExistsError if `destination` exists, and keeps that file. Raises MalformedModel, for example if the inputs of
    the copy would not have the new shapes. Raises OSError. No partial copy is left.
    """

    def find_changes(model: BinaryIO) -> list[Splice]:
        header = parse_header(model)  # This call rejects incomplete models and excessive nesting.
        return list(_Sizes(WireReader(model), shapes, bind_symbols(header, shapes)).changes())

    splice(source, destination, find_changes)
    try:
        _check_shapes(read_header(destination), shapes)
    except BaseException:
        destination.unlink()
        raise


def _check_shapes(header: ModelHeader, shapes: Mapping[str, Shape]) -> None:
    found = {value.name: value.shape for value in (*header.inputs, *header.initialized_inputs)}
    if any(found.get(name) != shape for name, shape in shapes.items()):
        raise MalformedModel("the declarations of its inputs cannot be changed")


class _Sizes(Struct, frozen=True):
    """Finder of the bytes of a model that depend on the sizes of the model's inputs."""

    _wire: WireReader
    _shapes: Mapping[str, Shape]
    _symbols: Mapping[str, int]

    def changes(self) -> Iterator[Splice]:
        for graph in self._wire.fields(0, self._wire.size, frozenset({proto.MODEL_GRAPH})):
            yield from self._change_graph((graph,), is_main=True)

    def _change_graph(self, path: tuple[Field, ...], *, is_main: bool) -> Iterator[Splice]:
        values: list[Field] = []
        uninferred: set[str] = set()
        for field in self._wire.message(path[-1], _GRAPH_FIELDS):
            if field.number == proto.GRAPH_NODE:
                yield from self._change_node((*path, field), uninferred)
            else:
                values.append(field)
        for value in values:
            name = self._read_name(value)
            is_input = is_main and value.number == proto.GRAPH_INPUT
            shape = self._shapes.get(name) if is_input else None
            for field in self._wire.message(value, frozenset({proto.VALUE_TYPE})):
                yield from self._change_type((*path, value, field), shape, keep=is_input or name in uninferred)

    def _change_node(self, path: tuple[Field, ...], uninferred: set[str]) -> Iterator[Splice]:
        domain = ""
        outputs = []
        for field in self._wire.message(path[-1], _NODE_FIELDS):
            if field.number == proto.NODE_DOMAIN:
                domain = self._wire.text(field)
            elif field.number == proto.NODE_OUTPUT:
                outputs.append(field)
            else:
                for graph in self._wire.message(field, proto.ATTRIBUTE_GRAPHS):
                    yield from self._change_graph((*path, field, graph), is_main=False)
        if domain not in _INFERRED_DOMAINS:
            uninferred.update(self._wire.text(output) for output in outputs)

    def _read_name(self, value: Field) -> str:
        name = ""
        for field in self._wire.message(value, frozenset({proto.VALUE_NAME})):
            name = self._wire.text(field)
        return name

    def _change_type(self, path: tuple[Field, ...], shape: Shape | None, *, keep: bool) -> Iterator[Splice]:
        for kind in self._wire.message(path[-1], frozenset({*proto.TYPES_WITH_SHAPE, *proto.NESTED_TYPES})):
            if kind.number in proto.NESTED_TYPES:
                for inner in self._wire.message(kind, frozenset({proto.NESTED_TYPES[kind.number]})):
                    yield from self._change_type((*path, kind, inner), None, keep=keep)
                continue
            declared = list(self._wire.message(kind, frozenset({proto.TENSOR_TYPE_SHAPE})))
            if shape is not None and not declared:
                dims = b"".join(
                    encode_bytes(proto.SHAPE_DIMENSION, b"" if size is None else _encode_size(size)) for size in shape
                )
                yield Splice((*path, kind), kind.end, kind.end, encode_bytes(proto.TENSOR_TYPE_SHAPE, dims))
            for field in declared:
                yield from self._change_shape((*path, kind, field), shape, keep=keep)

    def _change_shape(self, path: tuple[Field, ...], shape: Shape | None, *, keep: bool) -> Iterator[Splice]:
        """Yield the changes of a declared shape.

        If `shape` is given, its dimensions replace the declared ones. Otherwise, symbols become their sizes. Stale sizes
        are removed.
        """
        dims = list(self._wire.message(path[-1], frozenset({proto.SHAPE_DIMENSION})))
        declared = [self._read_size(dim) for dim in dims]
        stale = shape is None and not keep and all(isinstance(size, int) and size >= 0 for size in declared)
        wanted = shape or [self._symbols.get(size) if isinstance(size, str) else None for size in declared]
        for dim, old, new in zip(dims, declared, wanted, strict=False):
            changes = isinstance(new, int) and new != old
            if changes or stale:
                for field in self._wire.message(dim, _DIM_SIZE):
                    yield Splice((*path, dim), field.tag_at, field.end, b"")
            if changes:
                yield Splice((*path, dim), dim.end, dim.end, _encode_size(new))

    def _read_size(self, dim: Field) -> Dimension:
        """Return the size of a dimension as written in the file, even if it is negative."""
        declared: Dimension = None
        for field in self._wire.message(dim, _DIM_SIZE):
            declared = read_integer(field) if field.number == proto.DIMENSION_VALUE else self._wire.text(field)
        return declared


def _encode_size(size: Dimension) -> bytes:
    """Encode the size or the symbol of a dimension as its only field."""
    if isinstance(size, int):
        return encode_integer(proto.DIMENSION_VALUE, size)
    return encode_bytes(proto.DIMENSION_PARAM, (size or "").encode())

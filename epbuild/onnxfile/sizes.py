"""Fixed sizes of a model's inputs.

A symbol that gets a size has it everywhere: in inputs, outputs, and what the model notes of the values between, in subgraphs too. The graph
and its weights are copied in pieces, so memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from msgspec import Struct

from epbuild.onnxfile import numbers
from epbuild.onnxfile.headers import parse_header, read_header
from epbuild.onnxfile.model_header import Dimension, ModelHeader, ValueInfo, symbol
from epbuild.onnxfile.splice import Splice, splice
from epbuild.onnxfile.wire import Field, MalformedModel, WireReader, encode_bytes, encode_integer, integer

Shape = tuple[Dimension, ...]

# Field numbers, as onnx.proto gives them.
_GRAPH_FIELDS = frozenset({numbers.GRAPH_NODE, numbers.GRAPH_INPUT, numbers.GRAPH_OUTPUT, numbers.GRAPH_VALUE_INFO})
_NODE_FIELDS = frozenset({numbers.NODE_OUTPUT, numbers.NODE_ATTRIBUTE, numbers.NODE_DOMAIN})
_TENSOR = 1
_SPARSE_TENSOR = 8
_NESTING = {4: 1, 5: 2, 9: 1}
"""Types that hold a type, and the field that it is in: sequences, maps and optional values."""
_TENSOR_SHAPE = 2
_SHAPE_DIM = 1
_DIM_VALUE = 1
_DIM_PARAM = 2
_DIM_SIZE = frozenset({_DIM_VALUE, _DIM_PARAM})

# ONNX Runtime infers the shapes of what these compute.
_INFERRED_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


class SizeConflict(NamedTuple):
    """Why sizes cannot be those of a model's input, as a clause; `dimension` is the one at fault, by its number, if it is one."""

    input: str
    kind: Literal["unknown", "rank", "contradiction"]
    reason: str
    dimension: int | None = None


class FixedSizes(Struct, frozen=True):
    """What sizes of inputs come to in one model.

    `shapes` has every input whose shape changes by them, as it is then, with all of its dimensions: those of inputs that have a symbol in
    common with one that was given sizes, too. Two spellings of the same have the same `shapes`.
    """

    shapes: Mapping[str, Shape]
    symbols: Mapping[str, int]
    """The size of each symbol that has one."""
    misfits: tuple[SizeConflict, ...] = ()


def fit_sizes(header: ModelHeader, sizes: Mapping[str, Sequence[int]]) -> FixedSizes:
    """What `sizes`, each the whole shape of an input by its name, come to in the model of this header."""
    if not sizes:  # most models have none, and are asked for each of their targets
        return FixedSizes({}, {})
    values = {value.name: value for value in (*header.inputs, *header.initialized_inputs)}
    defaults = {item.name: item.dims for item in header.initializers if item.name in values}
    symbols: dict[str, tuple[int, str]] = {}
    misfits: list[SizeConflict] = []
    given: dict[str, Shape] = {}
    for name, wanted in sizes.items():
        value = values.get(name)
        misfit = _misfit(name, value, wanted)
        if misfit is not None or value is None:
            misfits += [misfit] if misfit is not None else []
            continue
        fixed = defaults.get(name) or value.shape or wanted
        for index, (declared, known, size) in enumerate(zip(value.shape or wanted, fixed, wanted, strict=False)):
            shared = symbol(declared)
            other, by = symbols.setdefault(shared, (size, name)) if shared is not None else (size, name)
            if isinstance(known, int) and known > 0 and known != size:
                misfits.append(SizeConflict(name, "contradiction", f"the model has {known} there, and not {size}", index))
            elif other != size:
                what = f"is both {other} and {size}" if by == name else f"is {size} here and {other} in '{by}'"
                misfits.append(SizeConflict(name, "contradiction", f"'{declared}' {what}", index))
        given[name] = tuple(wanted)
    bound = {shared: size for shared, (size, _) in symbols.items()}
    shapes = {}
    for name, value in values.items():
        shape = given.get(name, _with_symbols(value.shape, bound))
        if shape is not None and shape != value.shape:
            shapes[name] = shape
    return FixedSizes(shapes, bound, tuple(misfits))


def sized_header(header: ModelHeader, shapes: Mapping[str, Shape]) -> ModelHeader:
    """The header of a model whose inputs have these `shapes`, as `fix_sizes` writes it, as far as inputs and outputs go."""
    symbols = _symbols(header, shapes)

    def output(value: ValueInfo) -> ValueInfo:
        shape = value.shape
        if shape and all(isinstance(size, int) for size in shape):
            return value._replace(shape=(None,) * len(shape))
        return value._replace(shape=_with_symbols(shape, symbols))

    if not shapes:
        return header
    inputs, initialized = (
        tuple(value._replace(shape=shapes.get(value.name, value.shape)) for value in values)
        for values in (header.inputs, header.initialized_inputs)
    )
    return replace(header, inputs=inputs, initialized_inputs=initialized, outputs=tuple(map(output, header.outputs)))


def fix_sizes(source: Path, destination: Path, shapes: Mapping[str, Shape]) -> None:
    """Write to `destination` a copy of the model `source` whose inputs have these `shapes`, as `fit_sizes` has them.

    A number that the model declares of another value may be from when its inputs had another size, where none of that value's dimensions is
    open: ONNX Runtime goes by it before what it infers, and an EP then finds no shape at all. Such numbers are taken out, but for what an
    operator of an unknown domain computes, whose shape nothing else gives.

    Raises FileExistsError where `destination` exists, and leaves it; MalformedModel, also where the model is written so that its inputs do
    not come out as they should; OSError. No partial copy is left.
    """

    def sized(model: BinaryIO) -> list[Splice]:
        header = parse_header(model)  # refuses what is no whole model, or nested without end
        return list(_Rewriting(WireReader(model), shapes, _symbols(header, shapes)).model())

    splice(source, destination, sized)
    try:
        _check_shapes(read_header(destination), shapes)
    except BaseException:
        destination.unlink()
        raise


def _check_shapes(header: ModelHeader, shapes: Mapping[str, Shape]) -> None:
    found = {value.name: value.shape for value in (*header.inputs, *header.initialized_inputs)}
    if any(found.get(name) != shape for name, shape in shapes.items()):
        raise MalformedModel("its inputs are declared in a way that no size can be given to")


def _misfit(name: str, value: ValueInfo | None, wanted: Sequence[int]) -> SizeConflict | None:
    """Why sizes cannot be those of an input whatever they are."""
    if value is None:
        return SizeConflict(name, "unknown", "the model has no such input")
    if not value.elem_type:
        return SizeConflict(name, "rank", "it is not a tensor, and has no sizes")
    if value.shape is not None and len(value.shape) != len(wanted):
        dimensions = "1 dimension" if len(value.shape) == 1 else f"{len(value.shape)} dimensions"
        return SizeConflict(name, "rank", f"it has {dimensions}, {shape_text(value.shape)}, and {len(wanted)} sizes are given")
    return None


def shape_text(shape: Shape | None) -> str:
    """A shape as people write it: `[batch, 3, ?, 320]`."""
    return "[...]" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _with_symbols(shape: Shape | None, symbols: Mapping[str, int]) -> Shape | None:
    if shape is None:
        return None
    return tuple(symbols.get(size, size) if isinstance(size, str) else size for size in shape)


def _symbols(header: ModelHeader, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The symbols that have a size in `shapes`."""
    return {
        shared: size
        for value in (*header.inputs, *header.initialized_inputs)
        for declared, size in zip(value.shape or (), shapes.get(value.name, ()), strict=False)
        if (shared := symbol(declared)) is not None and isinstance(size, int)
    }


class _Rewriting(Struct, frozen=True):
    """The places of one model that change with the sizes of its inputs."""

    _wire: WireReader
    _shapes: Mapping[str, Shape]
    _symbols: Mapping[str, int]

    def model(self) -> Iterator[Splice]:
        for graph in self._wire.fields(0, self._wire.size, frozenset({numbers.MODEL_GRAPH})):
            yield from self._graph((graph,), is_main=True)

    def _graph(self, path: tuple[Field, ...], *, is_main: bool) -> Iterator[Splice]:
        values: list[Field] = []
        uninferred: set[str] = set()
        for field in self._wire.message(path[-1], _GRAPH_FIELDS):
            if field.number == numbers.GRAPH_NODE:
                yield from self._node((*path, field), uninferred)
            else:
                values.append(field)
        for value in values:
            name = self._name(value)
            if is_main and value.number == numbers.GRAPH_INPUT:
                yield from self._value((*path, value), self._shapes.get(name), keep=True)
            else:
                yield from self._value((*path, value), None, keep=name in uninferred)

    def _node(self, path: tuple[Field, ...], uninferred: set[str]) -> Iterator[Splice]:
        domain = ""
        outputs = []
        for field in self._wire.message(path[-1], _NODE_FIELDS):
            if field.number == numbers.NODE_DOMAIN:
                domain = self._wire.text(field)
            elif field.number == numbers.NODE_OUTPUT:
                outputs.append(field)
            else:
                for graph in self._wire.message(field, numbers.ATTRIBUTE_GRAPHS):
                    yield from self._graph((*path, field, graph), is_main=False)
        if domain not in _INFERRED_DOMAINS:
            uninferred.update(self._wire.text(output) for output in outputs)

    def _name(self, value: Field) -> str:
        name = ""
        for field in self._wire.message(value, frozenset({numbers.VALUE_NAME})):
            name = self._wire.text(field)
        return name

    def _value(self, path: tuple[Field, ...], shape: Shape | None, *, keep: bool) -> Iterator[Splice]:
        for field in self._wire.message(path[-1], frozenset({numbers.VALUE_TYPE})):
            yield from self._type((*path, field), shape, keep=keep)

    def _type(self, path: tuple[Field, ...], shape: Shape | None, *, keep: bool) -> Iterator[Splice]:
        for kind in self._wire.message(path[-1], frozenset({_TENSOR, _SPARSE_TENSOR, *_NESTING})):
            if kind.number in _NESTING:
                for inner in self._wire.message(kind, frozenset({_NESTING[kind.number]})):
                    yield from self._type((*path, kind, inner), None, keep=keep)
                continue
            declared = list(self._wire.message(kind, frozenset({_TENSOR_SHAPE})))
            if shape is not None and not declared:
                dims = b"".join(encode_bytes(_SHAPE_DIM, b"" if size is None else _encoded_size(size)) for size in shape)
                yield Splice((*path, kind), kind.end, kind.end, encode_bytes(_TENSOR_SHAPE, dims))
            for field in declared:
                yield from self._shape((*path, kind, field), shape, keep=keep)

    def _shape(self, path: tuple[Field, ...], shape: Shape | None, *, keep: bool) -> Iterator[Splice]:
        """The dimensions of a declared shape that change: to those of `shape`, else to the sizes of symbols; or that lose their number."""
        dims = list(self._wire.message(path[-1], frozenset({_SHAPE_DIM})))
        declared = [self._declared(dim) for dim in dims]
        stale = shape is None and not keep and all(isinstance(size, int) and size >= 0 for size in declared)
        wanted = shape or [self._symbols.get(size) if isinstance(size, str) else None for size in declared]
        for dim, old, new in zip(dims, declared, wanted, strict=False):
            changes = isinstance(new, int) and new != old
            if changes or stale:
                for field in self._wire.message(dim, _DIM_SIZE):
                    yield Splice((*path, dim), field.tag_at, field.end, b"")
            if changes:
                yield Splice((*path, dim), dim.end, dim.end, _encoded_size(new))

    def _declared(self, dim: Field) -> Dimension:
        """The size as it is written, also below 0."""
        declared: Dimension = None
        for field in self._wire.message(dim, _DIM_SIZE):
            declared = integer(field) if field.number == _DIM_VALUE else self._wire.text(field)
        return declared


def _encoded_size(size: Dimension) -> bytes:
    """The one field of a dimension."""
    if isinstance(size, int):
        return encode_integer(_DIM_VALUE, size)
    return encode_bytes(_DIM_PARAM, (size or "").encode())

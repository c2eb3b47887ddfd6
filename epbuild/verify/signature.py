"""Signatures: inputs and outputs of models, and differences between signatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from epbuild.onnxfile.read.model_header import ModelHeader, ValueInfo
from epbuild.plan.result import ModelSignature, ValueType

# Type names of ONNX Runtime and NumPy, indexed by TensorProto.DataType.
_TYPES = (
    "undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32",
    "uint64", "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4",
    "float4e2m1", "float8e8m0", "uint2", "int2", "float6e2m3", "float6e3m2",
)  # fmt: skip

Shape = tuple[Any, ...] | None


def get_signature(header: ModelHeader) -> ModelSignature:
    """Return the signature of a model: its inputs and outputs."""
    return ModelSignature(tuple(map(_make_value_type, header.inputs)), tuple(map(_make_value_type, header.outputs)))


def get_source_signature(source: ModelHeader, compiled: Sequence[ValueInfo], weights_file: str | None) -> ModelSignature:
    """Return the signature of a source. `compiled` are the outputs of the model that was compiled from it.

    If the declared shape of an output differs from the shape that the graph computes, the signature also contains the computed
    shape (`computed`). ONNX Runtime warns about such an output. It uses the inferred shape, or no shape if both shapes contradict
    each other.
    """
    found, made = get_signature(source), {value.name: _make_value_type(value).shape for value in compiled}
    outputs = (
        value if value.name not in made or _fits(value.shape, made[value.name]) else replace(value, computed=made[value.name])
        for value in found.outputs
    )
    return ModelSignature(found.inputs, tuple(outputs), weights_file)


def describe_signature_differences(source: ModelSignature, compiled: ModelSignature) -> Iterator[str]:
    """Describe the differences between a compiled model's signature and its source's signature, as clauses.

    A free dimension of the source may have a fixed size in the compiled model.
    """
    yield from _describe_differences("input", source.inputs, compiled.inputs)
    yield from _describe_differences("output", source.outputs, compiled.outputs)


def describe_wrong_declarations(outputs: Sequence[ValueType]) -> str:
    """Describe the outputs whose declared shape differs from the computed shape, as sentences. Empty if there are none."""
    return " ".join(
        f"The source declares the output '{value.name}' as {_format_shape(value.shape)}; "
        f"ONNX Runtime computed {_format_shape(value.computed)}."
        for value in outputs
        if value.computed is not UNSET
    )


def _describe_differences(kind: str, source: Sequence[ValueType], compiled: Sequence[ValueType]) -> Iterator[str]:
    wanted = {value.name: value for value in source}
    found = {value.name: value for value in compiled}
    yield from (f"the source's {kind} '{name}' is missing" for name in wanted if name not in found)
    yield from (f"the source has no {kind} '{name}'" for name in found if name not in wanted)
    for name, value in wanted.items():
        if name not in found:
            continue
        made = found[name]
        if value.type != made.type:
            yield f"the {kind} '{name}' is {made.type}; in the source it is {value.type}"
        if not _fits(value.shape if value.computed is UNSET else value.computed, made.shape):
            yield f"the {kind} '{name}' has the shape {_format_shape(made.shape)}; in the source it is {_format_shape(value.shape)}"
    if wanted.keys() == found.keys() and list(wanted) != list(found):
        yield f"the {kind}s are in a different order: {', '.join(found)}; the order in the source is {', '.join(wanted)}"


def _fits(source: Shape, compiled: Shape) -> bool:
    """Return whether a compiled shape matches its source's shape. Symbols and unknown dimensions match any size.

    Negative sizes count as unknown: sources from Paddle have -1, and old manifests repeat this value.
    """
    if source is None:
        return True
    if compiled is None or len(source) != len(compiled):
        return False
    return all(not isinstance(size, int) or size < 0 or size == made for size, made in zip(source, compiled, strict=True))


def _format_shape(shape: Shape) -> str:
    return "unknown" if shape is None else str(list(shape)).replace("None", "?").replace("'", "")


def _make_value_type(value: ValueInfo) -> ValueType:
    kind = _TYPES[value.elem_type] if 0 <= value.elem_type < len(_TYPES) else f"type {value.elem_type}"
    return ValueType(value.name, kind, value.shape)

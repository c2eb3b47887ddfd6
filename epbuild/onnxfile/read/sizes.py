"""Sizes of a model's inputs: the effect of chosen sizes, and suggestions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epbuild.core.records import convert
from epbuild.onnxfile.read.model_header import Dimension, ModelHeader, ValueInfo, get_symbol

Shape = tuple[Dimension, ...]

# Patterns for dimension names that exporters generate, with the usual size. The first match counts.
_COMMON_SIZES: Sequence[tuple[re.Pattern[str], int]] = [
    (re.compile(pattern, re.IGNORECASE), size)
    for pattern, size in (
        (r"batch|^(n|b|bs|bsz)$", 1),
        (r"channel|^c$", 3),
        (r"height|width|^(h|w)$", 224),
        (r"past.*\+.*|total|attention", 128),
        (r"past|seq|len|token|time|^(s|t|l)$", 64),
    )
]
_COLOR_CHANNELS = (1, 3, 4)
_IMAGE_SIZE = 224
_SEQUENCE_LENGTH = 64
SPLIT = "epbuild.split"
"""Key of a model's metadata for facts about the model that a part was extracted from, as JSON."""
_ANY_TYPE = 1
"""Element type of inputs whose type does not matter."""
_STATE_RANK = 3
"""Rank of a recurrent network's state: layers, batch, width."""
_MIN_IMAGE_RANK = 4
"""Minimum rank of an input that is assumed to be an image."""


class SizeConflict(Struct, frozen=True):
    """Reason why sizes do not fit an input, as a clause. `dimension` is the index of the wrong dimension, or None."""

    input: str
    kind: Literal["unknown", "rank", "contradiction"]
    reason: str
    dimension: int | None = None


class FixedSizes(Struct, frozen=True):
    """Effect of chosen input sizes on one model.

    `shapes` has the complete new shape of every input that changes, including inputs that share a symbol with a given
    input. Two ways to write the same choice have equal `shapes`.
    """

    shapes: Mapping[str, Shape]
    symbols: Mapping[str, int]
    """Size of each symbol whose size is known."""
    misfits: tuple[SizeConflict, ...] = ()


def fit_sizes(header: ModelHeader, sizes: Mapping[str, Sequence[int]]) -> FixedSizes:
    """Apply `sizes`, which are complete shapes by input name, to a model.

    Return the new shapes, and a conflict for each size that does not fit. In a part of a split model, sizes of inputs of other parts
    also bind the symbols that this part uses.
    """
    if not sizes:  # the usual case, for each model and target
        return FixedSizes({}, {})
    own = {value.name: value for value in (*header.inputs, *header.initialized_inputs)}
    values = {value.name: value for value in read_inputs_of_whole(header)} | own
    defaults = {item.name: item.dims for item in header.initializers if item.name in values}
    symbols: dict[str, tuple[int, str]] = {}
    misfits: list[SizeConflict] = []
    given: dict[str, Shape] = {}
    for name, wanted in sizes.items():
        value = values.get(name)
        if value is None:
            misfits.append(SizeConflict(name, "unknown", "the model has no such input"))
            continue
        if reason := _explain_rank_conflict(value, wanted):
            misfits.append(SizeConflict(name, "rank", reason))
            continue
        fixed = defaults.get(name) or value.shape or wanted
        for index, (declared, known, size) in enumerate(zip(value.shape or wanted, fixed, wanted, strict=False)):
            shared = get_symbol(declared)
            other, by = symbols.setdefault(shared, (size, name)) if shared is not None else (size, name)
            if isinstance(known, int) and known > 0 and known != size:
                misfits.append(SizeConflict(name, "contradiction", f"its size is {known} in the model, not {size}", index))
            elif other != size:
                what = f"is both {other} and {size}" if by == name else f"is {size} here and {other} in '{by}'"
                misfits.append(SizeConflict(name, "contradiction", f"'{declared}' {what}", index))
        given[name] = tuple(wanted)
    bound = {shared: size for shared, (size, _) in symbols.items()}
    shapes = {}
    for name, value in own.items():
        shape = given.get(name, _replace_symbols(value.shape, bound))
        if shape is not None and shape != value.shape:
            shapes[name] = shape
    return FixedSizes(shapes, bound, tuple(misfits))


def read_inputs_of_whole(header: ModelHeader) -> list[ValueInfo]:
    """Return the inputs of the model that a part was extracted from, with their shapes. Return an empty list for any other model.

    The preparation `split` writes these inputs into the metadata of each part.
    """
    try:
        inputs = json.loads(header.metadata.get(SPLIT, "{}"))["inputs"]
        shapes = convert(inputs, dict[str, tuple[int | str | None, ...] | None])
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # a model of another program that uses the same key
    return [ValueInfo(name=name, elem_type=_ANY_TYPE, shape=shape) for name, shape in shapes.items() if shape is not None]


def apply_shapes(header: ModelHeader, shapes: Mapping[str, Shape]) -> ModelHeader:
    """Return the header that a model would have after `fix_sizes` with these `shapes`. Only inputs and outputs are updated."""
    if not shapes:
        return header
    symbols = bind_symbols(header, shapes)

    def update(value: ValueInfo) -> ValueInfo:
        return value._replace(shape=shapes.get(value.name, value.shape))

    def update_output(value: ValueInfo) -> ValueInfo:
        shape = value.shape
        if shape and all(isinstance(size, int) for size in shape):
            return value._replace(shape=(None,) * len(shape))
        return value._replace(shape=_replace_symbols(shape, symbols))

    return replace(
        header,
        inputs=tuple(map(update, header.inputs)),
        initialized_inputs=tuple(map(update, header.initialized_inputs)),
        outputs=tuple(map(update_output, header.outputs)),
    )


def bind_symbols(header: ModelHeader, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes that `shapes` assigns to symbols."""
    return {
        shared: size
        for value in (*header.inputs, *header.initialized_inputs)
        for declared, size in zip(value.shape or (), shapes.get(value.name, ()), strict=False)
        if (shared := get_symbol(declared)) is not None and isinstance(size, int)
    }


def format_shape(shape: Sequence[Dimension] | None) -> str:
    """Format a shape for users, such as `[batch, 3, ?, 320]`."""
    return "[...]" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def suggest_sizes(inputs: Sequence[ValueInfo]) -> dict[str, tuple[int, ...]]:
    """Suggest complete shapes for inputs, so that every dimension becomes fixed.

    An input is omitted if an earlier input already determines the sizes of all its symbols.
    """
    symbols: dict[str, int] = {}
    found = {}
    for value in inputs:
        if value.shape is None or all(isinstance(size, int) or get_symbol(size) in symbols for size in value.shape):
            continue
        sizes = []
        for place, declared in enumerate(value.shape):
            name = get_symbol(declared)
            size = declared if isinstance(declared, int) else symbols.get(name or "") or _guess(value.shape, place, name or "")
            if name is not None:
                symbols[name] = size
            sizes.append(size)
        found[value.name] = tuple(sizes)
    return found


def _explain_rank_conflict(value: ValueInfo, wanted: Sequence[int]) -> str | None:
    if not value.elem_type:
        return "it is not a tensor and has no sizes"
    if value.shape is not None and len(value.shape) != len(wanted):
        dimensions = "1 dimension" if len(value.shape) == 1 else f"{len(value.shape)} dimensions"
        return f"it has {dimensions}, {format_shape(value.shape)}, but {len(wanted)} sizes are given"
    return None


def _replace_symbols(shape: Shape | None, symbols: Mapping[str, int]) -> Shape | None:
    if shape is None:
        return None
    return tuple(symbols.get(size, size) if isinstance(size, str) else size for size in shape)


def _guess(shape: Sequence[Dimension], place: int, name: str) -> int:
    for pattern, size in _COMMON_SIZES:
        if pattern.search(name):
            return size
    if place == 0:
        return 1
    if place == 1 and len(shape) == _STATE_RANK and isinstance(shape[0], int) and shape[0] > 1 and isinstance(shape[-1], int):
        return 1
    if len(shape) < _MIN_IMAGE_RANK:
        return _SEQUENCE_LENGTH
    # The color channels are either the second or the last dimension.
    return 3 if place == 1 and shape[-1] not in _COLOR_CHANNELS else _IMAGE_SIZE

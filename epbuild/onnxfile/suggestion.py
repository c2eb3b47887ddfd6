"""Likely sizes of the open dimensions of a model's inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from epbuild.onnxfile.model_header import Dimension, ValueInfo, symbol

# What dimensions are called by exporters, and what people then take; the first that is in a name counts.
_KNOWN: Sequence[tuple[re.Pattern[str], int]] = [
    (re.compile(pattern, re.IGNORECASE), size)
    for pattern, size in (
        (r"batch|^(n|b|bs|bsz)$", 1),
        (r"channel|^c$", 3),
        (r"height|width|^(h|w)$", 224),
        (r"past.*\+.*|total|attention", 128),
        (r"past|seq|len|token|time|^(s|t|l)$", 64),
    )
]
_COLOURS = (1, 3, 4)
_IMAGE = 224
_STEPS = 64
_STATE_RANK = 3
"""The rank of a recurrent network's state: its layers, the batch, its width."""
_PIXELS_FROM = 4
"""The rank from which the inner dimensions are those of an image."""


def suggest_sizes(inputs: Sequence[ValueInfo]) -> dict[str, tuple[int, ...]]:
    """Whole shapes for as many inputs as it takes to fix every dimension: a symbol that has a size by one input has it in others too."""
    symbols: dict[str, int] = {}
    found = {}
    for value in inputs:
        if value.shape is None or all(isinstance(size, int) or symbol(size) in symbols for size in value.shape):
            continue
        sizes = []
        for place, declared in enumerate(value.shape):
            name = symbol(declared)
            size = declared if isinstance(declared, int) else symbols.get(name or "") or _guess(value.shape, place, name or "")
            if name is not None:
                symbols[name] = size
            sizes.append(size)
        found[value.name] = tuple(sizes)
    return found


def _guess(shape: Sequence[Dimension], place: int, name: str) -> int:
    for pattern, size in _KNOWN:
        if pattern.search(name):
            return size
    if place == 0:
        return 1
    if place == 1 and len(shape) == _STATE_RANK and isinstance(shape[0], int) and shape[0] > 1 and isinstance(shape[-1], int):
        return 1
    if len(shape) < _PIXELS_FROM:
        return _STEPS
    # Either the second or the last dimension has the colours.
    return _COLOURS[1] if place == 1 and shape[-1] not in _COLOURS else _IMAGE

"""Decoders with a key-value cache: recognition, and sizes for their phases."""

from __future__ import annotations

import re

from msgspec import Struct

from epbuild.onnxfile.read.model_header import ModelHeader, ValueInfo, get_symbol

_TOKENS = re.compile(r"input_ids|inputs_embeds|tokens")
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_PRESENT = re.compile(r"present|cache", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_POSITIONS = re.compile(r"position", re.IGNORECASE)
_INTEGERS = frozenset({6, 7, 9})
"""Element types of a mask that selects tokens: int32, int64 and bool."""
_CACHE_RANK = 4
"""Rank of a cache: batch, heads, and the sequence and the width in either order."""


class Decoder(Struct, frozen=True):
    """Decoder whose sequence and cache have open sizes. Each mapping has the open axis by the name of an input."""

    inputs: tuple[ValueInfo, ...]
    sequence: dict[str, int]
    """Axis of the new tokens."""
    cache: dict[str, int]
    """Axis of the cached tokens."""
    context: dict[str, int]
    """Axis of all tokens, cached and new, as in an attention mask."""
    keeps_cache_size: bool
    """True if the outputs for the cache have the size of the inputs, so that a caller passes them on."""
    masks: tuple[str, ...]
    """Names of the attention masks of integers or Booleans, where ones select tokens."""

    def list_shapes(self, tokens: int, context: int) -> dict[str, tuple[int, ...]]:
        """Return shapes of inputs for `tokens` new tokens, and for `context` tokens in all. Other open dimensions get the size 1.

        Inputs that share the names of their dimensions with earlier inputs are left out.
        """
        cached = context if self.keeps_cache_size else context - tokens
        sizes = ((self.sequence, tokens), (self.cache, cached), (self.context, context))
        known: set[str] = set()
        shapes: dict[str, tuple[int, ...]] = {}
        for value in self.inputs:
            declared = value.shape or ()
            if all(isinstance(size, int) or get_symbol(size) in known for size in declared):
                continue
            known.update(filter(None, map(get_symbol, declared)))
            wanted = {axes[value.name]: size for axes, size in sizes if value.name in axes}
            shapes[value.name] = tuple(
                size if isinstance(size, int) else wanted.get(axis, 1) for axis, size in enumerate(declared)
            )
        return shapes


def find_decoder(header: ModelHeader) -> Decoder | None:
    """Return a model as a decoder, or None if it is none or if its sequence or its cache has a fixed size."""
    tokens = next((value for value in header.inputs if _TOKENS.search(value.name) and len(value.shape or ()) > 1), None)
    caches = [value for value in header.inputs if _PAST.search(value.name) and len(value.shape or ()) == _CACHE_RANK]
    presents = [value for value in header.outputs if _PRESENT.search(value.name)]
    if tokens is None or not caches or len(presents) != len(caches):
        return None
    batch = (tokens.shape or ())[0]
    cache = {value.name: axes[0] for value in caches if len(axes := _find_open_axes(value, batch)) == 1}
    if _find_open_axes(tokens, batch) != [1] or len(cache) != len(caches):
        return None
    symbol = (tokens.shape or ())[1]
    others = [value for value in header.inputs if value.shape and value.name not in cache and value is not tokens]
    masks = [value for value in others if _MASK.search(value.name)]
    positions = [value for value in others if _POSITIONS.search(value.name)]
    return Decoder(
        inputs=header.inputs,
        sequence={
            tokens.name: 1,
            **{value.name: _last_axis(value) for value in positions},
            **{value.name: _last_axis(value) - 1 for value in masks if _last_axis(value) > 1},
        },
        cache=cache,
        context={value.name: _last_axis(value) for value in masks if (value.shape or ())[-1] != symbol},
        keeps_cache_size=all(given.shape == made.shape for given, made in zip(caches, presents, strict=True)),
        masks=tuple(value.name for value in masks if value.elem_type in _INTEGERS),
    )


def _last_axis(value: ValueInfo) -> int:
    return len(value.shape or ()) - 1


def _find_open_axes(value: ValueInfo, batch: object) -> list[int]:
    """Return the axes of an input that are open, without the axis of the batch."""
    return [axis for axis, size in enumerate(value.shape or ()) if not isinstance(size, int) and (axis > 0 or size != batch)]

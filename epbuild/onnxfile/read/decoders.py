"""Decoders with a key-value cache: recognition, and sizes for their phases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.onnxfile.read.graph_nodes import read_graphs
from epbuild.onnxfile.read.model_header import ModelHeader, ValueInfo, get_symbol

_TOKENS = re.compile(r"input_ids|inputs_embeds|tokens")
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_PRESENT = re.compile(r"present|cache", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_ATTENTION_MASK = re.compile(r"(attention|attn|causal)_?mask", re.IGNORECASE)
_ENCODER = re.compile(r"encoder|cross", re.IGNORECASE)
_POSITIONS = re.compile(r"position", re.IGNORECASE)
_INTEGERS = frozenset({6, 7, 9})
"""Element types of a mask that selects tokens: int32, int64 and bool."""
_JOINING = frozenset({"Concat", "Identity", "Cast", "Transpose", "Reshape"})
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


class ShortMask(Struct, frozen=True):
    """Attention mask that covers fewer tokens than a decoder has: its size, and the sizes that require a longer mask."""

    mask: str
    size: int
    tokens: str
    new_tokens: int
    cache: str
    cached_tokens: int


def find_short_masks(source: ModelHeader, resolved: ModelHeader, graph: Path) -> list[ShortMask]:
    """Return the attention masks that are too short for the cached and the new tokens of a decoder.

    `resolved` is the header of `source` with all sizes that the recipe sets, and `graph` is the source's file. A decoder is skipped if
    its outputs for the cache are not concatenations of the cache and new values. A mask of size 1 may be valid, because it is
    broadcast. A longer mask may be valid, because some models slice it. Raises MalformedModel and OSError.
    """
    parts = _find_parts(source)
    if parts is None:
        return []
    tokens, caches, presents = parts
    shapes = {value.name: value.shape or () for value in resolved.inputs}
    axes = _find_cache_axes(tokens, caches)
    cached, new = {shapes[name][axis] for name, axis in axes.items()}, shapes[tokens.name][1]
    if len(axes) != len(caches) or len(cached) != 1:
        return []
    [old] = cached
    found = [
        ShortMask(mask.name, size, tokens.name, new, caches[0].name, old)
        for mask in source.inputs
        if _ATTENTION_MASK.search(mask.name) and _has_own_size(mask, tokens)
        for size in shapes[mask.name][-1:]
        if isinstance(size, int) and isinstance(new, int) and isinstance(old, int) and 1 < size < old + new
    ]
    grows = found and _grows([(given.name, made.name) for given, made in zip(caches, presents, strict=True)], graph)
    return found if grows else []


def _grows(pairs: Sequence[tuple[str, str]], graph: Path) -> bool:
    """Return whether each output in the pairs of inputs and outputs is a concatenation of the input and other values."""
    makers = {name: node for node in read_graphs(graph)[0].nodes for name in node.outputs if name}

    def is_longer(made: str, given: str) -> bool:
        seen = {(made, False)}  # each value, and whether a Concat is between it and the output
        unread = [*seen]
        while unread:
            name, joined = unread.pop()
            node = makers.get(name)
            if name == given and joined:
                return True
            if name == given or node is None or node.operator not in _JOINING:
                continue
            inputs = {(value, joined or node.operator == "Concat") for value in node.inputs} - seen
            seen |= inputs
            unread += inputs
        return False

    return all(is_longer(made, given) for given, made in pairs)


def find_decoder(header: ModelHeader) -> Decoder | None:
    """Return a model as a decoder, or None if it is none or if its sequence or its cache has a fixed size."""
    parts = _find_parts(header)
    if parts is None:
        return None
    tokens, caches, presents = parts
    cache = _find_cache_axes(tokens, caches)
    if _find_open_axes(tokens, (tokens.shape or ())[0]) != [1] or len(cache) != len(caches):
        return None
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
        context={value.name: _last_axis(value) for value in masks if _has_own_size(value, tokens)},
        keeps_cache_size=all(given.shape == made.shape for given, made in zip(caches, presents, strict=True)),
        masks=tuple(value.name for value in masks if value.elem_type in _INTEGERS),
    )


def _find_parts(header: ModelHeader) -> tuple[ValueInfo, list[ValueInfo], list[ValueInfo]] | None:
    """Return the tokens of a decoder, and the inputs and the outputs of its cache.

    Return None for other models, and for decoders with cross-attention, which have a second cache with another size.
    """
    tokens = next((value for value in header.inputs if _TOKENS.search(value.name) and len(value.shape or ()) > 1), None)
    caches = [value for value in header.inputs if _PAST.search(value.name) and len(value.shape or ()) == _CACHE_RANK]
    presents = [value for value in header.outputs if _PRESENT.search(value.name)]
    has_encoder = any(_ENCODER.search(value.name) for value in header.inputs)
    return (tokens, caches, presents) if tokens and caches and len(presents) == len(caches) and not has_encoder else None


def _find_cache_axes(tokens: ValueInfo, caches: Sequence[ValueInfo]) -> dict[str, int]:
    """Return the axis of the cached tokens for each input of the cache that has one open axis."""
    batch = (tokens.shape or ())[0]
    return {value.name: axes[0] for value in caches if len(axes := _find_open_axes(value, batch)) == 1}


def _has_own_size(mask: ValueInfo, tokens: ValueInfo) -> bool:
    """Return whether the last axis of a mask is open, and is not declared to have the size of the new tokens."""
    size = (mask.shape or (1,))[-1]
    return not isinstance(size, int) and (get_symbol(size) is None or size != (tokens.shape or ())[1])


def _last_axis(value: ValueInfo) -> int:
    return len(value.shape or ()) - 1


def _find_open_axes(value: ValueInfo, batch: object) -> list[int]:
    """Return the axes of an input that are open, without the axis of the batch."""
    return [axis for axis, size in enumerate(value.shape or ()) if not isinstance(size, int) and (axis > 0 or size != batch)]

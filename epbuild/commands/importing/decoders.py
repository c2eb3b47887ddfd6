"""Decoders of other tools, in parts and at fixed sizes, as members of a group.

The rules are those of Olive's passes for language models. Sources: olive/passes/pytorch/capture_split_info.py,
olive/passes/onnx/split.py and olive/passes/onnx/static_llm.py (commit ee6f40fbefcc).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from epbuild.commands.importing.build import DecoderPasses, ImportedBuild
from epbuild.commands.init.answers import read_pipeline
from epbuild.commands.init.choices import FoundModel
from epbuild.commands.init.recipe import CarriedDecoder, GenaiPipeline, name_models
from epbuild.onnxfile.read.model_header import ModelHeader, get_symbol

_TOKENS = "input_ids"
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.([0-9]{1,6})(\..*)?$")
_CACHE = re.compile(r"(?:past|cache)[^0-9]*([0-9]{1,6})")
_METADATA = "split_assignments"
_ENDS = ("embeddings", "lm_head")
_MIN_STAGES = 3
"""Smallest number of models of which the first are the embeddings and the last is the head."""


class _Stages(NamedTuple):
    """Models of a pipeline."""

    layers: Mapping[str, Sequence[str]]
    """Models that contain layers, in order, by phase."""
    ends: Sequence[str] = ()
    """Embeddings and head, which stay on the CPU. Empty if they are in the models with the layers."""
    sizes: Mapping[str, Mapping[str, str]] = {}
    """Sizes of open dimensions by phase. Empty if the models have fixed sizes."""


def carry_decoder(build: ImportedBuild, found: Sequence[FoundModel]) -> CarriedDecoder | None:
    """Return the decoder that the source splits or compiles at fixed sizes, or None. Record passes that are not imported."""
    passes = build.decoder
    if passes is None:
        return None
    names = [*name_models([model.path for model in found])]
    boundaries = _find_boundaries(build, passes, found[0].header) if passes.split and len(found) == 1 else []
    if passes.split and len(found) > 1:
        build.skip_setting(f"pass {passes.split}", "the given models are its parts")
    pieces = [f"{names[0]}_{number}" for number in range(len(boundaries) + 1)] if boundaries else names
    splits = {found[0].path: boundaries} if boundaries else {}
    symbols = _find_symbols(found[0].header)
    if passes.static and (stages := _find_stages(names) or _choose_stages(build, passes, pieces, symbols)):
        return _carry_stages(build, stages, splits, _find_pipeline(build, passes, found[0].path))
    if passes.static:
        why = f"the first model has no input `{_TOKENS}` whose two dimensions are open and named"
        hint = "If a model has open dimensions, set their sizes with `dimensions` or `input_shapes`."
        build.skip_setting(f"pass {passes.static}", why, hint)
    members = [{"model": piece} for piece in pieces]
    return CarriedDecoder(splits, members, [pieces] if build.share_weights else []) if boundaries else None


def _find_stages(names: Sequence[str]) -> _Stages | None:
    """Return the stages if the models have the names that StaticLLM gives to its results, or None."""
    layers = {
        phase: [name for name in names if re.fullmatch(rf"{stem}(_[0-9]+)?", name)]
        for phase, stem in (("prefill", "context"), ("decode", "iterator"))
    }
    ends = _ENDS if set(_ENDS) <= {*names} else ()
    count = len(layers["prefill"])
    return _Stages(layers, ends) if count and count == len(layers["decode"]) and 2 * count + len(ends) == len(names) else None


def _choose_stages(
    build: ImportedBuild, passes: DecoderPasses, pieces: Sequence[str], symbols: tuple[str, str] | None
) -> _Stages | None:
    """Return the stages that StaticLLM makes of the parts of a decoder, or None if the tokens have no open dimensions."""
    if symbols is None:
        return None
    ends = [pieces[0], pieces[-1]] if build.device != "gpu" and len(pieces) >= _MIN_STAGES else []
    layers = pieces[1:-1] if ends else pieces
    sizes = {phase: {symbols[0]: str(passes.batch), symbols[1]: str(tokens)} for phase, tokens in passes.tokens.items()}
    return _Stages(dict.fromkeys(sizes, layers), ends, sizes)


def _carry_stages(
    build: ImportedBuild, stages: _Stages, splits: Mapping[str, Sequence[int]], pipeline: GenaiPipeline | None
) -> CarriedDecoder:
    """Return the decoder with the stages as members. The same layers at different sizes share weights."""
    roles = {
        phase: [phase if len(models) == 1 else f"{phase}_{number}" for number in range(len(models))]
        for phase, models in stages.layers.items()
    }
    members: list[Mapping[str, str | Mapping[str, str]]] = []
    for phase, models in stages.layers.items():
        sizes = {"dimensions": stages.sizes[phase]} if stages.sizes else {}
        members += [{"model": model, "name": name, **sizes} for model, name in zip(models, roles[phase], strict=True)]
    sets = [*zip(*roles.values(), strict=True)] if build.share_weights and len(roles) > 1 else []
    if len(roles) == 1:
        roles = {"both": next(iter(roles.values()))}
    if stages.ends:
        first, last = ({"model": model, "name": name, "compile": "none"} for model, name in zip(stages.ends, _ENDS, strict=True))
        members = [first, *members, last]
        roles = {"embeddings": [_ENDS[0]], **roles, "lm_head": [_ENDS[1]]}
    return CarriedDecoder(splits, members, sets, pipeline, roles)


def _find_pipeline(build: ImportedBuild, passes: DecoderPasses, path: str) -> GenaiPipeline | None:
    """Return the configuration of onnxruntime-genai beside a decoder if it has the window of the longest phase."""
    tokens = max(passes.tokens.values())
    pipeline = read_pipeline(path)
    if pipeline is not None and pipeline.prompt == tokens:
        return pipeline
    build.skip_setting(
        "genai_config.json",
        f"there is no configuration beside the model with a sliding window of {tokens} tokens, which StaticLLM writes",
        f"Set the decoder's `sliding_window: {{window_size: {tokens}, alignment: left, pad_value: 0, slide_key_value_cache: false}}`"
        " in it, and the group's `genai`.",
    )
    return None


def _find_symbols(header: ModelHeader | None) -> tuple[str, str] | None:
    """Return the names of the batch and of the sequence of the tokens, or None if they have fixed sizes or no names."""
    shapes = [value.shape for value in header.inputs if value.name == _TOKENS] if header is not None else []
    symbols = [get_symbol(size) for size in (shapes[0] or ())] if shapes else []
    match symbols:
        case [str(batch), str(sequence)] if batch != sequence:
            return batch, sequence
    return None


def _find_boundaries(build: ImportedBuild, passes: DecoderPasses, header: ModelHeader | None) -> list[int]:
    """Return the layers with which parts begin. Record a split that no list of layers describes."""
    metadata = read_assignments(header.metadata.get(_METADATA)) if header is not None else {}
    assignments = passes.assignments or metadata or _assign_layers(passes, header)
    found = find_first_layers(assignments)
    if not found and len(set(assignments.values())) != 1:
        why = "its parts are unknown or end within layers" if assignments else "the layers of the model are unknown or too few"
        build.skip_setting(f"pass {passes.split}", why, "Set the model's `split`, and list its parts in the group.")
    return found


def _assign_layers(passes: DecoderPasses, header: ModelHeader | None) -> dict[str, int]:
    """Return the part of each layer by name. As in numpy.array_split, the first parts have one layer more if needed."""
    numbers = [int(match[1]) for value in header.inputs if (match := _CACHE.search(value.name))] if header is not None else []
    count = max(numbers) + 1 if numbers else 0
    if not 0 < passes.parts <= count:
        return {}
    size, larger = divmod(count, passes.parts)
    ends = [size * (part + 1) + min(part + 1, larger) for part in range(passes.parts)]
    before = int(passes.has_ends)
    found = {f"layers.{layer}": before + next(part for part, end in enumerate(ends) if layer < end) for layer in range(count)}
    return {"embed_tokens": 0, **found, "lm_head": passes.parts + 1} if passes.has_ends else found


def read_assignments(value: object) -> dict[str, int]:
    """Return the part of each module from Olive's notation `NAME=PART;NAME=PART` or from an object. Return {} if it is invalid."""
    pairs = value.items() if isinstance(value, Mapping) else [item.rpartition("=")[::2] for item in str(value or "").split(";")]
    try:
        return {str(name): int(part) for name, part in pairs}
    except (TypeError, ValueError):
        return {}


def find_first_layers(assignments: Mapping[str, int]) -> list[int]:
    """Return the layers with which all parts but the first begin, or [] if there is one part or if parts end within layers.

    The head, which follows the last layer, begins with the number of layers: exporters name the last norm like a layer.
    """
    layers: dict[int, int] = {}
    others = []
    for name, part in assignments.items():
        found = _LAYER.search(name)
        if found is None:
            others.append(part)
        elif found[2]:
            return []
        else:
            layers[int(found[1])] = part
    if sorted(layers) != [*range(len(layers))] or not layers:
        return []
    parts = [layers[layer] for layer in range(len(layers))]
    starts = [0] if min([parts[0], *others]) < parts[0] else []
    starts += [layer + 1 for layer, (one, following) in enumerate(pairwise(parts)) if one != following]
    starts += [len(parts)] if max([parts[-1], *others]) > parts[-1] else []
    return starts if parts == sorted(parts) and len(set(assignments.values())) == len(starts) + 1 else []

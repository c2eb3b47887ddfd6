"""`genai_config.json`: compiled models as the stages of one decoder.

The user provides all other settings: sizes, token ids, names of inputs, and the search. Each check is based on a measurement with
onnxruntime-genai 0.18.0. This version rejects such a configuration when it reads the file or before the first token, or it computes wrong
tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from msgspec import Struct, field

from epbuild.catalog.catalog import BUILT_IN, CPU_EP
from epbuild.core.canonical import JsonFile
from epbuild.core.safepath import has_parent_part, is_anchored
from epbuild.core.units import format_count
from epbuild.onnxfile.read.sizes import format_shape
from epbuild.recipe.model import GenaiRole

Shape = tuple[Any, ...] | None
"""Shape of a tensor. A dimension is a size, a symbol's name, or None; the shape is None if the rank is unknown."""
_PROMPT, _TOKEN = "on the prompt", "on each token"
_RUNS: Mapping[str, tuple[str, ...]] = {
    "embeddings": (_PROMPT, _TOKEN),
    "prefill": (_PROMPT,),
    "decode": (_TOKEN,),
    "both": (_PROMPT, _TOKEN),
    "lm_head": (_PROMPT, _TOKEN),
}
"""Phases in which each role runs. The roles are in execution order."""
_OTHER_PARTS = ("embedding", "encoder", "speech", "vision")
_INPUTS = {
    "input_ids": "input_ids",
    "inputs_embeds": "inputs_embeds",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
    "past_key_values_length": "past_key_values_length",
    "past_sequence_length": "past_sequence_length",
    "current_sequence_length": "current_sequence_length",
    "total_sequence_length": "total_sequence_length",
    "cache_indirection": "cache_indirection",
}
"""Defaults of model.decoder.inputs: onnxruntime-genai, src/config.h."""
_OUTPUTS = {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
_CACHES = {"past_key_names": "present_key_names", "past_value_names": "present_value_names", "past_names": "present_names"}
"""Key of the outputs that update the cache, by the key of the inputs that read it."""


class GenaiError(ValueError):
    """Error for a configuration that onnxruntime-genai would not run; `sentences` are the reasons."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = tuple(sentences)


class Stage(Struct, frozen=True):
    """Model of a decoder, with the options that its session needs."""

    role: GenaiRole
    name: str
    filename: str
    """POSIX path relative to the configuration."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    session_options: Mapping[str, str] = field(default_factory=dict)
    provider_options: Sequence[tuple[str, Mapping[str, str]]] = ()
    """ONNX Runtime's name of each EP, with its options."""
    genai_providers: Mapping[str, str] = field(default_factory=dict)
    """onnxruntime-genai's names of EPs from the user's own catalog files."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Known shapes of the inputs and outputs, by name."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Known element types of the inputs and outputs, by name."""
    run_options: Mapping[str, str] = field(default_factory=dict)

    def get_provider(self, ep: str) -> str:
        """Return onnxruntime-genai's name of an EP; empty if onnxruntime-genai does not know the EP."""
        return self.genai_providers.get(ep) or BUILT_IN.genai_provider(ep)


def build_genai_config(base: Mapping[str, Any], stages: Sequence[Stage]) -> JsonFile:
    """Return the configuration: `base` with the stages as `model.decoder.pipeline`, in execution order.

    The model's type becomes `decoder-pipeline`. The session options of a stage are those of the decoder in `base`, without EPs, and then
    its own. Raises GenaiError with all problems that `check_base` or `check_stages` finds.
    """
    wrong = check_base(base) or check_stages(base, stages)
    if wrong:
        raise GenaiError(wrong)
    model: Mapping[str, Any] = base["model"]
    decoder = {key: value for key, value in model.get("decoder", {}).items() if key not in ("filename", "session_options")}
    common = {
        key: value for key, value in model.get("decoder", {}).get("session_options", {}).items() if key != "provider_options"
    }
    decoder["pipeline"] = [{stage.name: _describe_stage(stage, common)} for stage in _sort_stages(stages)]
    return JsonFile({**base, "model": {**model, "type": "decoder-pipeline", "decoder": decoder}})


def check_base(document: Any) -> list[str]:
    """Return the reasons why a user's configuration is not a valid base, as sentences without a full stop."""
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), Mapping):
        return ["the configuration is not a JSON object with an object 'model'"]
    model = document["model"]
    found = [sentence for key in ("context_length", "vocab_size") if (sentence := _check_size(model, key))]
    found += [] if found else _check_end_tokens(model)
    decoder = model.get("decoder", {})
    options = decoder.get("session_options", {}) if isinstance(decoder, Mapping) else {}
    for name, value in (("model.decoder", decoder), ("model.decoder.session_options", options)):
        if not isinstance(value, Mapping):
            found.append(f"{name} must be an object")
    if isinstance(decoder, Mapping):
        if "pipeline" in decoder:
            found.append("model.decoder.pipeline is written by epbuild; remove it")
        found += [
            f"model.decoder.{key} must be an object whose values are strings"
            for key in ("inputs", "outputs")
            if not _is_string_mapping(decoder.get(key, {}))
        ]
    found += [f"model.{key} is not allowed in a decoder-pipeline" for key in _OTHER_PARTS if key in model]
    return found + list(_find_unwritable(document, ""))


def check_stages(base: Mapping[str, Any], stages: Sequence[Stage]) -> list[str]:
    """Return the reasons why onnxruntime-genai would not run these stages, or would compute wrong tokens. `base` must be valid."""
    wrong = [*_check_roles(stages), *_check_each_stage(stages)]
    return wrong or list(dict.fromkeys((*_find_unfed(base, stages), *_find_uncached(base, stages), *check_caches(base, stages))))


def check_caches(base: Mapping[str, Any], stages: Sequence[Stage]) -> list[str]:
    """Return the reasons why the known shapes prevent onnxruntime-genai from reusing the cache in the next run.

    For a cache of fixed size, onnxruntime-genai allocates one buffer per tensor, with the shape of the layer's keys. Every stage reads
    this buffer as its past and writes it as its present.
    """
    layers: dict[str, list[tuple[str, str, Shape]]] = {}
    for cached in _find_cached(base, stages):
        tensors = layers.setdefault(cached.layer, [])
        tensors += ((cached.stage.name, name, cached.stage.shapes.get(name)) for name in (cached.past, cached.present))
    wrong = [found for found in map(_find_conflict, layers.values()) if found]
    if not wrong:
        return []
    shapes = ", ".join(f"'{name}' of the stage '{stage}' is {format_shape(shape)}" for stage, name, shape in wrong[0])
    more = f"; the shapes of {format_count(len(wrong) - 1, 'other layer')} also differ" if len(wrong) > 1 else ""
    return [f"every run reads and writes the same cache of fixed size, but these shapes differ: {shapes}{more}"]


def _find_conflict(tensors: Sequence[tuple[str, str, Shape]]) -> list[tuple[str, str, Shape]]:
    """Return the first tensor of each conflicting shape; none if all tensors may have the same shape."""
    shown: list[tuple[str, str, Shape]] = []
    for tensor in tensors:
        if tensor[2] is not None and (not shown or all(_are_different(tensor[2], shape) for _, _, shape in shown)):
            shown.append(tensor)
    return shown if len(shown) > 1 else []


def _are_different(one: Shape, other: Shape) -> bool:
    """Return whether two shapes have different ranks, or different sizes in a dimension that is known in both."""
    if one is None or other is None:
        return False
    pairs = zip(one, other, strict=False)
    return len(one) != len(other) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _describe_stage(stage: Stage, common: Mapping[str, Any]) -> dict[str, Any]:
    runs = _RUNS[stage.role]
    # The CPU EP is always available. onnxruntime-genai rejects an entry for it that has an option.
    providers = [{stage.get_provider(ep): dict(options)} for ep, options in stage.provider_options if ep != CPU_EP]
    return {
        "filename": stage.filename,
        "inputs": list(stage.inputs),
        "outputs": list(stage.outputs),
        "run_on_prompt": _PROMPT in runs,
        "run_on_token_gen": _TOKEN in runs,
        **({"is_lm_head": True} if stage.role == "lm_head" else {}),
        "session_options": {**common, **stage.session_options, "provider_options": providers},
        **({"run_options": dict(stage.run_options)} if stage.run_options else {}),
    }


def _sort_stages(stages: Sequence[Stage]) -> list[Stage]:
    order = list(_RUNS)
    return sorted(stages, key=lambda stage: order.index(stage.role))


def _check_size(model: Mapping[str, Any], key: str) -> str | None:
    value = model.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return None
    return f"model.{key} must be a positive integer"


def _check_end_tokens(model: Mapping[str, Any]) -> list[str]:
    value = model.get("eos_token_id", model.get("pad_token_id", 0))
    ends = value if isinstance(value, list) else [value]
    if all(isinstance(end, int) and 0 <= end < model["vocab_size"] for end in ends):
        return []
    return ["model.eos_token_id must be a token id or a list of token ids below model.vocab_size"]


def _is_string_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value.values())


def _find_unwritable(value: Any, where: str) -> Iterator[str]:
    """Yield a sentence for each value that onnxruntime-genai's parser rejects: it reads neither `null` nor escaped characters."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield f"{where} has a value that onnxruntime-genai cannot read"
    elif isinstance(value, str) and any(_is_unwritable(character) for character in value):
        yield f"{where} has a character that onnxruntime-genai cannot read"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _find_unwritable(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _find_unwritable(item, f"{where}[{number}]")


def _is_unwritable(character: str) -> bool:
    return (character < " " and character not in "\b\t\n\f\r") or "\ud800" <= character <= "\udfff"


def _check_roles(stages: Sequence[Stage]) -> Iterator[str]:
    roles = [stage.role for stage in stages]
    if "both" in roles:
        for role in ("prefill", "decode"):
            if role in roles:
                yield f"the role 'both' covers the prompt and each token, so no other model may have the role '{role}'"
    else:
        for role in ("prefill", "decode"):
            if role not in roles:
                yield f"no model has the role '{role}' or 'both'"


def _check_each_stage(stages: Sequence[Stage]) -> Iterator[str]:
    names = [stage.name for stage in stages]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"two stages have the name '{name}'; onnxruntime-genai treats them as one"
    for stage in stages:
        if is_anchored(stage.filename) or has_parent_part(stage.filename):
            yield f"the stage '{stage.name}' has the file '{stage.filename}', which is outside the configuration's folder"
        for ep, options in stage.provider_options:
            if not stage.get_provider(ep):
                yield f"the stage '{stage.name}' needs {ep}, which onnxruntime-genai does not support"
            yield from _find_unwritable(dict(options), ep)


def _find_unfed(base: Mapping[str, Any], stages: Sequence[Stage]) -> Iterator[str]:
    """Yield a sentence for each input without a value or with a value that does not fit, and for logits that no stage computes."""
    given = [_compile_pattern(name) for name in _get_names(base, "inputs").values()]
    logits = _get_names(base, "outputs")["logits"]
    for phase in (_PROMPT, _TOKEN):
        running = [stage for stage in _sort_stages(stages) if phase in _RUNS[stage.role]]
        made: dict[str, Stage] = {}
        for stage in running:
            for name in stage.inputs:
                if name in made:
                    yield from _compare_ends(name, made[name], stage)
                elif not any(pattern.fullmatch(name) for pattern in given):
                    yield (
                        f"the stage '{stage.name}' needs the input '{name}', but no earlier stage computes it and "
                        f"model.decoder.inputs does not list it"
                    )
            made.update(dict.fromkeys(stage.outputs, stage))
        if logits not in chain.from_iterable(stage.outputs for stage in running):
            yield f"no stage that runs {phase} has the output '{logits}', which model.decoder.outputs.logits names"


def _compare_ends(name: str, source: Stage, target: Stage) -> Iterator[str]:
    """Yield a sentence if an output of one stage cannot be the input of the same name of another stage."""
    ends = [(stage.types.get(name), stage.shapes.get(name)) for stage in (source, target)]
    (made_type, made_shape), (read_type, read_shape) = ends
    if (made_type and read_type and made_type != read_type) or _are_different(made_shape, read_shape):
        texts = [f"{kind or ''} {format_shape(shape) if shape is not None else ''}".strip() for kind, shape in ends]
        yield f"the stage '{source.name}' computes '{name}' as {texts[0]}, but the stage '{target.name}' needs {texts[1]}"


def _find_uncached(base: Mapping[str, Any], stages: Sequence[Stage]) -> Iterator[str]:
    """Yield a sentence for each cache input that its stage never updates. onnxruntime-genai does not detect this error."""
    for cached in _find_cached(base, stages):
        if cached.present not in cached.stage.outputs:
            yield (
                f"the stage '{cached.stage.name}' reads '{cached.past}' from the cache but has no output '{cached.present}' that "
                f"updates it; name the output in model.decoder.outputs.{cached.key}"
            )


class _Cached(Struct, frozen=True):
    """Input that a stage reads from the cache."""

    stage: Stage
    past: str
    present: str
    """Output that updates the cache for this input."""
    key: str
    """Configuration key with the names of such outputs."""
    layer: str


def _find_cached(base: Mapping[str, Any], stages: Sequence[Stage]) -> Iterator[_Cached]:
    inputs, outputs = _get_names(base, "inputs"), _get_names(base, "outputs")
    for past, present in _CACHES.items():
        if past not in inputs:
            continue
        pattern = _compile_pattern(inputs[past])
        for stage in stages:
            for name in stage.inputs:
                if found := pattern.fullmatch(name):
                    layer = found[1] if pattern.groups else ""
                    yield _Cached(stage, name, outputs.get(present, "").replace("%d", layer), present, layer)


def _get_names(base: Mapping[str, Any], kind: Literal["inputs", "outputs"]) -> dict[str, str]:
    names: Mapping[str, str] = base["model"].get("decoder", {}).get(kind, {})
    return {**(_INPUTS if kind == "inputs" else _OUTPUTS), **names}


def _compile_pattern(name: str) -> re.Pattern[str]:
    """Return the regular expression for a name in which `%d` stands for the number of a layer."""
    return re.compile(re.escape(name).replace("%d", r"(\d+)"))

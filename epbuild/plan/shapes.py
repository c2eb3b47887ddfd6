"""Checks of a recipe's input sizes against the model and the EP.

The checks need only the model's header. They run during planning if the model is available, or else before the compile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epbuild.catalog.preparations import get_preparation, list_preparation_kinds
from epbuild.core.errors import Position, Problem, suggest_nearest
from epbuild.onnxfile.read.decoders import find_short_masks
from epbuild.onnxfile.read.headers import read_header
from epbuild.onnxfile.read.model_header import Dimension, ModelHeader, ValueInfo
from epbuild.onnxfile.read.sizes import FixedSizes, apply_shapes, fit_sizes, format_shape, suggest_sizes
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.member import Member
from epbuild.plan.target import PlannedEp, PlannedTarget
from epbuild.recipe.model import InputShape, ModelSpec

if TYPE_CHECKING:
    from epbuild.onnxfile.read.sizes import SizeConflict

_CODES = {"unknown": "EPB260", "rank": "EPB261", "contradiction": "EPB262"}
_MAX_NAMED = 3
_MAX_LISTED = 20
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NO_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


def fit_inputs(member: Member, header: ModelHeader) -> Member:
    """Return a copy of a member with the input shapes that result from the recipe's sizes. These shapes are part of the key."""
    denotations = frozenset(member.model.dimensions.keys() - {name for name, _ in _list_dimensions(header)})
    return replace(member, inputs=_fit_sizes(member.input_shapes, header).shapes, denotations=denotations)


def resolve_header(member: Member, header: ModelHeader) -> ModelHeader:
    """Return the header of a member's source with all sizes that the recipe sets for inputs and dimensions."""
    header = apply_shapes(header, member.inputs)
    inputs, outputs = (
        tuple(_override_sizes(value, member.model) for value in values) for values in (header.inputs, header.outputs)
    )
    return replace(header, inputs=inputs, outputs=outputs)


def read_stored_header(graph: Path) -> ModelHeader | None:
    """Read the header of a prepared model in the store. Return None if the file is missing or damaged, so that it is made again."""
    try:
        return read_header(graph)
    except (OSError, MalformedModel):
        return None


def find_model_size_problems(model: ModelSpec, header: ModelHeader, graph: Path) -> list[Problem]:
    """Return the problems of the sizes that a recipe sets for the inputs of a model before its first preparation."""
    asked = model.input_shapes
    resolved = apply_shapes(header, _fit_sizes(asked, header).shapes)
    return _find_input_problems(model.name, asked, header) or _find_decoder_problems(
        model.name, asked, header, resolved, graph, model.where
    )


def predict_header(lineage: Sequence[ModelSpec], header: ModelHeader) -> ModelHeader | None:
    """Return the header that a prepared model will have, as far as its inputs are concerned. Return None if it is unknown.

    `lineage` is the model after its ancestors. `header` is the header of the source of the first one.
    """
    kinds = list_preparation_kinds()
    for model in lineage:
        if not all(step.kind in kinds and get_preparation(step.kind).keeps_inputs for step in model.prepare):
            return None
        if model.prepare:
            header = apply_shapes(header, _fit_sizes(model.input_shapes, header).shapes)
    return header


def find_predicted_problems(member: Member, header: ModelHeader, target: PlannedTarget) -> list[Problem]:
    """Return the problem of open inputs of a prepared member. `header` is the predicted header of the prepared model."""
    known = {name for names in _list_dimensions(header) for name in names if name}
    # A preparation may name an unnamed dimension, and `dimensions` may set its size by this name.
    if _can_fall_back(member, target) or not member.model.dimensions.keys() <= known:
        return []
    return list(_find_open_inputs(member, header, target))


def _find_input_problems(model: str, asked: Mapping[str, InputShape], header: ModelHeader) -> list[Problem]:
    """Return the problems of the sizes that a recipe sets for the inputs of a model. `asked` has the sizes by input."""
    if not asked:
        return []
    names = [value.name for value in (*header.inputs, *header.initialized_inputs)]
    return [_make_size_problem(model, misfit, asked[misfit.input], names) for misfit in _fit_sizes(asked, header).misfits]


def _find_decoder_problems(
    model: str, asked: Mapping[str, InputShape], source: ModelHeader, resolved: ModelHeader, graph: Path, where: Position
) -> list[Problem]:
    """Return a problem for each attention mask of a decoder that is too short for the cached and the new tokens.

    `resolved` is the header of `source` with the sizes that a recipe sets. `asked` has the sizes of inputs. `graph` is the file.
    `where` is the position of sizes that `asked` does not have.
    """
    try:
        found = find_short_masks(source, resolved, graph)
    except (MalformedModel, OSError):  # reported elsewhere
        found = []
    problems = []
    for short in found:
        needed, rest = short.cached_tokens + short.new_tokens, short.size - short.new_tokens
        message = (
            f"the mask '{short.mask}' of the model '{model}' covers {short.size} tokens, but there are {needed}: "
            f"{short.cached_tokens} in the cache ('{short.cache}') and {short.new_tokens} new ones ('{short.tokens}')"
        )
        other = f", or the size of the cache to {rest}" if rest > 0 else ""
        places = (asked[name].places[-1] for name in (short.mask, short.cache, short.tokens) if name in asked)
        hint = f"Set the last size of '{short.mask}' to {needed}{other}."
        problems.append(Problem("EPB262", message, next(places, where), hint))
    return problems


def find_shape_problems(member: Member, header: ModelHeader, target: PlannedTarget | None) -> list[Problem]:
    """Return the problems of a member's shapes for a target.

    Invalid sizes of inputs and dimensions are problems. Open dimensions are problems if an EP supports only static shapes.
    `header` is the header of the source model.
    """
    problems = [*_find_input_problems(member.name, member.input_shapes, header), *_find_dimension_problems(member, header)]
    if not problems and member.has_files:
        resolved = resolve_header(member, header)
        problems = _find_decoder_problems(member.name, member.input_shapes, header, resolved, member.graph, member.model.where)
    if not problems and target is not None and not _can_fall_back(member, target):
        problems += _find_open_inputs(member, header, target)
    return problems


def find_shape_warnings(member: Member, header: ModelHeader, target: PlannedTarget) -> list[Problem]:
    """Return a warning if an EP needs static shapes, inputs have open dimensions, and the recipe allows CPU fallback."""
    return list(_find_open_inputs(member, header, target)) if _can_fall_back(member, target) else []


def _fit_sizes(asked: Mapping[str, InputShape], header: ModelHeader) -> FixedSizes:
    return fit_sizes(header, {name: shape.sizes for name, shape in asked.items()})


def _make_size_problem(model: str, misfit: SizeConflict, asked: InputShape, names: Sequence[str]) -> Problem:
    code = _CODES[misfit.kind]
    if misfit.kind == "unknown":
        hint = suggest_nearest(misfit.input, names) or f"Its inputs: {_format_names(names)}."
        return Problem(code, f"the model '{model}' has no input '{misfit.input}'", asked.name_where, hint)
    if misfit.dimension is None:
        hint = "Write a size for each dimension, including fixed ones."
        return Problem(code, f"the input '{misfit.input}' of the model '{model}': {misfit.reason}", asked.where, hint)
    message = f"dimension {misfit.dimension + 1} of the input '{misfit.input}' of the model '{model}': {misfit.reason}"
    return Problem(code, message, asked.places[misfit.dimension])


def _find_dimension_problems(member: Member, header: ModelHeader) -> Iterator[Problem]:
    """Yield the problems of a recipe's sizes for named or denoted dimensions. ONNX Runtime does not report these problems."""
    sizes, places = member.model.dimensions, member.model.dimension_places
    if not sizes:
        return
    dimensions = list(_list_dimensions(header))
    names = {name for name, _ in dimensions if name}
    known = names | {denotation for _, denotation in dimensions if denotation}
    for key in sizes:
        if key not in known:
            message = f"the model '{member.name}' has no input dimension with the name or denotation '{key}'"
            listed = f"Available: {_format_names(sorted(known))}."
            none = "No input dimension has a name or a denotation. Set the sizes of whole inputs with 'input_shapes'."
            yield Problem("EPB263", message, places[key], suggest_nearest(key, known) or (listed if known else none))
        elif key in names and any(name != key and denotation == key for name, denotation in dimensions if name is not None):
            both = "a dimension with this name and another with this denotation"
            message = f"'{key}' is ambiguous: the model '{member.name}' has {both}"
            yield Problem("EPB263", message, places[key], "Set the sizes of whole inputs with 'input_shapes'.")
    symbols = _fit_sizes(member.input_shapes, header).symbols
    for key, size in sizes.items():
        if symbols.get(key, size) != size:
            both = f"{size} here, {symbols[key]} in 'input_shapes'"
            yield _make_conflict(key, member, both, places[key])
    for name, denotation in dict.fromkeys(dimensions):
        if name is not None and name in sizes and denotation in sizes.keys() - names and sizes[name] != sizes[denotation]:
            both = f"{sizes[name]} by its name, {sizes[denotation]} by its denotation '{denotation}'"
            yield _make_conflict(name, member, both, places[denotation])


def _make_conflict(dimension: str, member: Member, both: str, where: Position) -> Problem:
    message = f"conflicting sizes for the dimension '{dimension}' of the model '{member.name}': {both}"
    return Problem("EPB262", message, where, "Use the same size for both.")


def _list_dimensions(header: ModelHeader) -> Iterator[tuple[str | None, str]]:
    """Yield the name and denotation of each input dimension. The name is '' for unnamed open dimensions, and None for fixed ones."""
    for value in header.inputs:
        for size, denotation in zip(value.shape or (), _get_denotations(value), strict=True):
            yield size if isinstance(size, str) else "" if size is None else None, denotation


def _get_denotations(value: ValueInfo) -> Sequence[str]:
    return value.denotations or ("",) * len(value.shape or ())


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{', '.join(names[:_MAX_LISTED])}{more}"


def _can_fall_back(member: Member, target: PlannedTarget) -> bool:
    """Return whether the recipe allows CPU fallback of nodes of a member."""
    return bool(member.expect.fallback_nodes) or target.leaves_to_cpu


def has_fixed_inputs(member: Member) -> bool:
    """Return whether all input dimensions of a member have sizes in the compile. Return False if the member's file cannot be read."""
    if not member.has_files:
        return False
    try:
        inputs = apply_shapes(read_header(member.graph), member.inputs).inputs
    except (OSError, MalformedModel):
        return False
    return all(_is_fixed(_override_sizes(value, member.model)) for value in inputs if value.elem_type)


def _find_open_inputs(member: Member, header: ModelHeader, target: PlannedTarget) -> Iterator[Problem]:
    ep = next((ep for ep in target.compiling if ep.entry.static_shapes is not None), None)
    inputs = [
        _override_sizes(value, member.model)
        for value in apply_shapes(header, _fit_sizes(member.input_shapes, header).shapes).inputs
    ]
    found = [value for value in inputs if value.elem_type and not _is_fixed(value)]
    if ep is not None and found:
        yield _make_open_problem(member, ep, found, header)


def _make_open_problem(member: Member, ep: PlannedEp, found: Sequence[ValueInfo], header: ModelHeader) -> Problem:
    rule = ep.entry.static_shapes
    listed = ", ".join(f"{value.name}{format_shape(value.shape)}" for value in found[:_MAX_NAMED])
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    inputs = "an input" if len(found) == 1 else "inputs"
    message = (
        f"the model '{member.name}' has {inputs} with open dimensions, {listed}{more}; {ep.entry.ep} supports static shapes only: "
        f"{rule.why if rule is not None else ''}"
    )
    given = {name: shape.sizes for name, shape in member.input_shapes.items()}
    sizes = {**given, **suggest_sizes(found)}
    lines = [f"  {_format_line(*item)}" for item in sizes.items()]
    hint = f"Set the sizes that you need, such as `input_shapes: {{{', '.join(line.strip() for line in lines)}}}`."
    if not sizes:
        hint = "Set the sizes of these inputs with 'input_shapes'."
    # If a model has the same problem in all groups, report the problem once, at the model.
    own = member.name != member.model.name or member.input_shapes != member.model.input_shapes
    where = member.where if own and member.where is not None else member.model.where
    return Problem("EPB264", message, where, hint, lines=("input_shapes:", *lines) if lines else ())


def _is_fixed(value: ValueInfo) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _override_sizes(value: ValueInfo, model: ModelSpec) -> ValueInfo:
    """Return an input or output with the sizes that the recipe sets for dimensions by name or denotation."""
    if value.shape is None or not model.dimensions:
        return value
    sizes: list[Dimension] = []
    for size, denotation in zip(value.shape, _get_denotations(value), strict=True):
        by_name = model.dimensions.get(size) if isinstance(size, str) else size
        sizes.append(by_name or model.dimensions.get(denotation) or size)
    return value._replace(shape=tuple(sizes))


def _format_line(name: str, sizes: Sequence[int]) -> str:
    """Return an input and its sizes as a line of YAML."""
    plain = _PLAIN_KEY.fullmatch(name) and name.lower() not in _NO_TEXT
    return f"{name if plain else json.dumps(name, ensure_ascii=False)}: {list(sizes)}"

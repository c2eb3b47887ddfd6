"""Reader of models, preparations, verifications and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from epbuild.core.errors import Position, Problem
from epbuild.recipe.address import find_address_problem
from epbuild.recipe.fields import MappingReader
from epbuild.recipe.model import (
    CommandChoice,
    MadeInputs,
    MeasureChoice,
    MetricChoice,
    ModelSpec,
    PrepareStep,
    VerifyChoice,
)
from epbuild.recipe.nodes import MappingNode, ScalarNode
from epbuild.recipe.paths import find_package_file, is_remote, use_slashes
from epbuild.recipe.problems import WRONG_VALUE

SOURCES: Final = ("path", "make", "from")
"""Keys of a model's source. Each model has one of them."""
RUN: Final = "run"
REWRITE: Final = "rewrite"
BUILT_IN: Final = ("quantize", "float16", "simplify", "infer_shapes", "opset", "cut", "split", "dequantize", REWRITE)
"""Kinds of preparation that have a built-in script. The catalog defines their options."""
LATER: Final = {RUN: ("in", "out", "model")}
"""Template names that only the arguments of a command may use."""
MEASURE_LATER: Final = {"command": ("in", "out", "facts", "model")}
"""Template names that only the arguments of a command of `measure` may use."""


def read_model(name: str, where: Position, fields: MappingReader) -> ModelSpec:
    """Read the definition of a model, and report problems of its path."""
    path, sha256 = fields.text("path") or "", fields.text("sha256")
    path_where = fields.where_of(next((key for key in SOURCES if key in fields.entries), "path"))
    folder = fields.path("external_data")
    if is_remote(path):
        problem = find_address_problem(path, path_where, pinned=sha256 is not None)
        fields.problems += [problem] if problem else []
        if folder:
            message = "'external_data' is not supported for a remote model: the data must be in the folder of the model's address"
            hint = "Remove 'external_data', or use the path of a local copy of the model."
            fields.problems.append(Problem(WRONG_VALUE, message, folder.where, hint))
    elif find_package_file(path) is not None:
        path = use_slashes(path, path_where, fields.problems)
    elif path:
        path = fields.rebased(path, path_where).name
    pins, sizes = fields.mapping("data_sha256"), fields.mapping("dimensions")
    load_from: Any = fields.text("load_from") or "file"
    return ModelSpec(
        name=name,
        where=where,
        path=path,
        path_where=path_where,
        sha256=sha256.lower() if sha256 else None,
        data_sha256={file: (pins.text(file) or "").lower() for file in pins.entries},
        input_shapes=fields.shapes("input_shapes"),
        dimensions={name: sizes.integer(name) or 0 for name in sizes.entries},
        dimension_places={name: entry.name_where for name, entry in sizes.entries.items()},
        load_from=load_from,
        external_data=folder,
        verify=read_verify(fields),
        prepare=tuple(_read_preparation(fields.of(item)) for item in fields.items("prepare")),
        make=_read_preparation(fields.mapping("make")) if "make" in fields.entries else None,
        parent=fields.reference("from") if "from" in fields.entries else None,
    )


def link_to_origins(models: Mapping[str, ModelSpec], problems: list[Problem]) -> dict[str, ModelSpec]:
    """Return the models, each with a parent linked to its first ancestor. Add a problem for each cycle to `problems`.

    A child of an unprepared model also gets the model's input shapes.
    """
    roots: dict[str, ModelSpec | None] = {name: model for name, model in models.items() if model.parent is None}
    for model in models.values():
        chain: dict[str, None] = {}
        last = model
        while last.name not in roots and last.name not in chain and last.parent is not None:
            chain[last.name] = None
            last = models.get(last.parent.name, last)
        if last.name in chain and last.parent is not None and last.parent.name in models:
            problems.append(_make_cycle_problem([*chain][[*chain].index(last.name) :], last))
        roots.update(dict.fromkeys(chain, roots.get(last.name)))
    return {name: _link(model, roots[name]) for name, model in models.items()}


def _link(model: ModelSpec, root: ModelSpec | None) -> ModelSpec:
    if model.parent is None or root is None:
        return model
    inherited = root.input_shapes if model.parent.name == root.name and not root.prepare else {}
    return replace(model, root=root, input_shapes={**inherited, **model.input_shapes})


def _make_cycle_problem(names: Sequence[str], first: ModelSpec) -> Problem:
    cycle = " -> ".join([*names, names[0]])
    message = f"the model '{first.name}' is made from itself: {cycle}"
    return Problem(WRONG_VALUE, message, first.path_where, "Set 'path' or 'make' of one of these models instead of 'from'.")


def _read_preparation(fields: MappingReader) -> PrepareStep:
    # The schema requires exactly one kind. An invalid kind has been removed.
    kind = next((name for name in (RUN, *BUILT_IN) if name in fields.entries), RUN)
    entry = fields.entries.get(kind)
    return PrepareStep(
        kind=kind,
        where=entry.name_where if entry is not None else fields.where,
        toolchain=fields.reference("toolchain"),
        command=fields.words(RUN) if kind == RUN else (),
        options=entry.node if entry is not None and kind != RUN else None,
        files=fields.paths("files"),
        environment=fields.settings("environment"),
        timeout=fields.number("timeout"),
        memory=fields.size("memory"),
    )


def read_verify(owner: MappingReader) -> VerifyChoice | None:
    """Read the key `verify` of a model, a group or a member. Return None if the key is absent."""
    entry = owner.entries.get("verify")
    if entry is None:
        return None
    if isinstance(entry.node, ScalarNode):
        return VerifyChoice(entry.node.where, wanted=owner.flag("verify"))
    fields = owner.mapping("verify")
    reference: Any = fields.text("reference")
    unjudged: Any = fields.text("unjudged")
    device: Any = fields.text("device")
    data = fields.entries.get("data")
    metrics, command = fields.mapping("metrics"), fields.mapping("command")
    return VerifyChoice(
        where=entry.node.where,
        files=fields.paths("data") if data and not isinstance(data.node, MappingNode) else None,
        made=_read_generated_inputs(fields.mapping("data")) if data and isinstance(data.node, MappingNode) else None,
        metrics={name: metrics.number(name) or 0.0 for name in metrics.entries} if "metrics" in fields.entries else None,
        reference=reference,
        unjudged=unjudged,
        device=device,
        metric=_read_metric(fields.mapping("metric")) if "metric" in fields.entries else None,
        command=CommandChoice(command.where, command.words(RUN), command.paths("files")) if "command" in fields.entries else None,
    )


def _read_metric(fields: MappingReader) -> MetricChoice:
    limits = {
        name: {metric: fields.mapping(name).number(metric) or 0.0 for metric in fields.mapping(name).entries}
        for name in ("min", "max", "max_drop", "max_rise")
    }
    return MetricChoice(fields.where, fields.words(RUN), fields.paths("files"), **limits)


def overlay_choice(own: VerifyChoice | None, base: VerifyChoice | None) -> VerifyChoice | None:
    """Return the settings `base` of a group or model, overridden by the settings `own` of a member or group, key by key."""
    if own is None or base is None or not base.wanted or not own.wanted:
        return base if own is None else own
    has_data = own.files is not None or own.made is not None
    return VerifyChoice(
        where=own.where,
        files=own.files if has_data else base.files,
        made=own.made if has_data else base.made,
        metrics=base.metrics if own.metrics is None else own.metrics,
        reference=own.reference or base.reference,
        unjudged=own.unjudged or base.unjudged,
        device=own.device or base.device,
        metric=own.metric or base.metric,
        command=own.command or base.command,
    )


def _read_generated_inputs(fields: MappingReader) -> MadeInputs:
    seed, samples = fields.integer("seed"), fields.integer("samples")
    defaults, ranges = MadeInputs(), fields.mapping("ranges")
    found: dict[str, tuple[float, float]] = {}
    for name, entry in ranges.entries.items():
        bounds = ranges.numbers(name)
        if len(bounds) == 2 and bounds[0] <= bounds[1]:
            found[name] = (bounds[0], bounds[1])
        elif len(bounds) == 2:  # otherwise an invalid bound has been removed
            message = "invalid range: expected the smallest number, followed by the largest number"
            fields.problems.append(Problem(WRONG_VALUE, message, entry.node.where))
    return MadeInputs(
        seed=defaults.seed if seed is None else seed,
        samples=defaults.samples if samples is None else samples,
        ranges=found,
        places={name: entry.name_where for name, entry in ranges.entries.items()},
    )


def read_measure(owner: MappingReader) -> MeasureChoice | None:
    """Read the key `measure` of a target or a group. Return None if the key is absent."""
    if "measure" not in owner.entries:
        return None
    fields = owner.mapping("measure")
    on: Any = fields.text("on")
    command, profile = fields.words("command"), fields.flag("profile")
    if command and profile:
        message = "'profile' of 'measure' cannot be combined with 'command'"
        hint = "Remove 'profile', and let the command profile the model."
        fields.problems.append(Problem(WRONG_VALUE, message, fields.entries["profile"].node.where, hint))
    return MeasureChoice(
        where=fields.where,
        command=command,
        files=fields.paths("files"),
        environment=fields.settings("environment"),
        timeout=fields.number("timeout"),
        on=on or "device",
        runs=fields.integer("runs") or MeasureChoice._field_defaults["runs"],
        profile=profile,
    )


def read_figures(fields: MappingReader, peak_memory: float | None) -> tuple[tuple[str, float], ...]:
    """Read the limits on measured figures, or on their growth as fractions. A single number of `latency_ms` limits the median."""
    latency = fields.expand_shorthand(fields.entries["latency_ms"].node, "p50") if "latency_ms" in fields.entries else None
    read = {
        "load_ms": fields.number("load_ms"),
        **{f"latency_ms.{name}": latency.number(name) for name in ("first", "p50", "p95") if latency is not None},
        "peak_memory": peak_memory,
    }
    return tuple((name, value) for name, value in read.items() if value is not None)

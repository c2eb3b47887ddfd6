"""Text of a first recipe. The recipe is written only if it can be planned."""

from __future__ import annotations

import os
import re
import secrets
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.catalog import entries_for, get_short_name
from epbuild.commands.init.choices import Remedy, StarterKind, is_address
from epbuild.commands.init.exports import ExportScript
from epbuild.commands.init.sizing import Sized
from epbuild.core.atomic import new_file, write_file
from epbuild.core.errors import EpbuildError, Position, Problem, escape_controls
from epbuild.onnxfile.read.decoders import Decoder
from epbuild.plan.planner import make_plan
from epbuild.recipe.defaults import DEFAULT_GROUPS
from epbuild.recipe.insertion import Definition
from epbuild.recipe.load import load
from epbuild.recipe.model import Recipe
from epbuild.recipe.names import is_glob, name_of_text, name_problem
from epbuild.recipe.template import escape
from epbuild.recipe.yaml_text import format_scalar

PRIVATE = 0o600
"""Mode of drafts, because other users may have no access to the recipe."""
_PREFIX = "node_name_prefix"
_GROUP = "main"
_EXPORT = "export"
"""Name of the toolchain of an export script."""
_OUTPUTS = (
    "# Each group and target gets a folder below dist/. For one package instead:",
    '# outputs: [{layout: ort-model-package, path: "dist/${recipe.name}.ortpackage"}]',
)
_ARCHIVES = (
    "# Each group and target gets a folder below dist/. For archives instead:",
    '# outputs: [{layout: directory, archive: zip, path: "dist/${group}-${target}.zip"}]',
)
"""Comment for EPs whose models cannot be in a model package."""
_VERIFY_HINT = "# `verify: true` compares numbers with the source model, if compiled models can be loaded."
_WIDTH = 120
_PROMPT, _CONTEXT = 64, 256
"""Tokens of a prompt in one run, and tokens in all, of a decoder without a configuration."""
_Fields = Mapping[str, "str | Sequence[str] | _Fields"]
"""Settings by key. A string is YAML, and a sequence is a list of names."""


class GenaiPipeline(Struct, frozen=True):
    """Configuration of onnxruntime-genai beside a decoder."""

    config: Path
    prompt: int
    """Tokens of a prompt in one run."""
    context: int
    """Tokens in all."""


class CarriedDecoder(Struct, frozen=True):
    """Models of another tool's configuration as members of one group, such as the parts of a decoder at two sizes."""

    splits: Mapping[str, Sequence[int]]
    """Layers with which parts begin, by path of the model."""
    members: Sequence[Mapping[str, str | Mapping[str, str]]]
    sets: Sequence[Sequence[str]]
    """Members that share weights."""
    pipeline: GenaiPipeline | None = None
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Members by role in the pipeline. Empty if the members are only parts of one model."""


class CarriedOver(Struct, frozen=True):
    """Settings of another tool's configuration that a recipe keeps."""

    head: tuple[str, ...] = ()
    """Lines of the comment at the top of the recipe."""
    provider_options: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, str] = field(default_factory=dict)
    compile: Mapping[str, str] = field(default_factory=dict)
    fallback_nodes: str = "any"
    decoder: CarriedDecoder | None = None


class RecipeChoices(Struct, frozen=True):
    """Models (paths or addresses) and targets (values by name) of a recipe."""

    kind: StarterKind
    models: Sequence[str]
    targets: Mapping[str, str]
    share_weights: bool = False
    name: str | None = None
    sizes: Mapping[str, Mapping[str, Sized]] = field(default_factory=dict)
    """Sizes of inputs, by path of the model and name of the input."""
    remedies: Mapping[str, Sequence[Remedy]] = field(default_factory=dict)
    """Preparations that replace nodes on which the EP is known to fail, by path of the model."""
    decoders: Mapping[str, Decoder] = field(default_factory=dict)
    """Decoders by path. Each is built at two sizes, for a prompt and for one new token."""
    pipelines: Mapping[str, GenaiPipeline] = field(default_factory=dict)
    """Configurations of onnxruntime-genai, by path of the decoder."""
    export: ExportScript | None = None
    """Script that makes the only model. None if the models exist."""
    carried: CarriedOver | None = None

    @property
    def run_here(self) -> bool:
        """True if models that are compiled for the targets are expected to run on this platform."""
        return all(self.kind.runs_here(value) for value in self.targets.values())


def write_recipe(path: Path, choices: RecipeChoices, *, overwrite: bool = False) -> tuple[Problem, ...]:
    """Write a recipe to `path` if it can be planned, and return the planner's warnings.

    Raises the errors of `check_draft`, and FileExistsError if the file exists and `overwrite` is not set. If an error is raised,
    nothing is written.
    """
    content = format_recipe(path, choices).encode()
    _, warnings = check_draft(path, content)
    with new_file(path, overwrite=overwrite) as new:
        new.write_bytes(content)
    return warnings


def find_plan_problem(path: Path, choices: RecipeChoices) -> str | None:
    """Return the reason why a recipe cannot be planned, as a sentence, or None if the recipe can be planned."""
    try:
        check_draft(path, format_recipe(path, choices).encode())
    except EpbuildError as error:
        return error.problems[0].text
    return None


def check_draft(path: Path, content: bytes) -> tuple[Recipe, tuple[Problem, ...]]:
    """Plan the recipe that `content` would be at `path`, and return it with the planner's warnings.

    Raises the errors of reading and planning the recipe. Positions in the recipe are removed from errors and warnings, because it is
    not written yet.
    """
    # The draft is beside the recipe, because paths in it are relative to its folder.
    draft = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        write_file(draft, content, durable=False, mode=PRIVATE)
        recipe = load(draft)
        return recipe, tuple(_drop_position(problem, draft) for problem in make_plan(recipe).warnings)
    except EpbuildError as error:
        raise type(error)(*(_drop_position(problem, draft) for problem in error.problems)) from None
    finally:
        draft.unlink(missing_ok=True)


def _drop_position(problem: Problem, draft: Path) -> Problem:
    where = problem.where
    is_draft = where == draft or (isinstance(where, Position) and where.file == str(draft))
    return replace(problem, where=None) if is_draft else problem


def define_model(name: str, model: str, folder: Path, choices: RecipeChoices) -> Definition:
    """Return the definition of a model. Its path is relative to `folder`."""
    lines = _format_model(name, format_scalar(_format_path(model, folder)), model, choices)
    return _make_definition(name, lines)


def define_target(name: str, choices: RecipeChoices) -> Definition:
    """Return the definition of one of the chosen targets."""
    return _make_definition(name, _format_entry(name, _build_target(choices, choices.targets[name])))


def define_toolchain(kind: StarterKind) -> Definition | None:
    """Return the definition of the toolchain of an EP, or None if the default toolchain of the EP is right."""
    if kind.start.interpreter is not None or entries_for(kind.entry.ep)[0].start == kind.start:
        return None
    return _make_definition(kind.start.name, _format_entry(kind.start.name, {"packages": kind.start.packages}))


def _make_definition(name: str, lines: Iterable[str]) -> Definition:
    return Definition(name, [line.removeprefix("  ") for line in lines])


def format_recipe(path: Path, choices: RecipeChoices) -> str:
    """Return the text of a recipe, without settings that equal their defaults. Its paths are relative to the folder of `path`."""
    folder = path.absolute().parent.name
    name = choices.name or name_of_text(folder) or "models"
    models = name_models(choices.models)
    lines = [
        *(_format_head(choices.carried.head) if choices.carried is not None else ()),
        "epbuild: 1",
        *([f"name: {format_scalar(name)}"] if name != folder or name_problem(folder, Position(str(path), 1, 1)) else []),
        *_format_toolchains(choices.kind, choices.export),
        *_format_models(models, path.parent, choices),
        *_format_targets(choices),
        *_format_groups(models, path.parent, choices),
        *(_OUTPUTS if choices.kind.entry.no_packages is None else _ARCHIVES),
    ]
    return "\n".join(lines) + "\n"


def _format_head(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        more = "#   " if text.startswith("- ") else "# "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="# ", subsequent_indent=more, break_long_words=False, break_on_hyphens=False
        )
    yield ""


def _format_toolchains(kind: StarterKind, export: ExportScript | None) -> Iterator[str]:
    """Yield the lines for the toolchains. Yield nothing for the EP's default toolchain, unless users must install it."""
    start = kind.start
    toolchains = [] if export is None else [(_EXPORT, export.packages)]
    if start.interpreter is not None:
        yield f"# Python environment with the EP. Default: {start.interpreter}"
        yield f"# toolchains: {{{start.name}: {{interpreter: PATH}}}}"
    elif entries_for(kind.entry.ep)[0].start != start:
        toolchains.append((start.name, start.packages))
    if toolchains:
        yield "toolchains:"
    if export is not None:
        unknown = f" It also imports {', '.join(export.unknown)}." if export.unknown else ""
        yield f"  # Packages that {escape_controls(export.name)} imports: please check, and pin versions.{unknown}"
    for name, packages in toolchains:
        yield f"  {name}: {{packages: {_format_flow(packages)}}}"


def _format_models(models: Mapping[str, str], folder: Path, choices: RecipeChoices) -> Iterator[str]:
    paths = {name: format_scalar(_format_path(model, folder)) for name, model in models.items()}
    if all(
        name == name_of_text(PurePath(model).stem)
        and not is_glob(model)
        and not choices.sizes.get(model)
        and not choices.remedies.get(model)
        and not _get_layers(model, choices)
        and choices.export is None
        for name, model in models.items()
    ):
        line = f"models: [{', '.join(paths.values())}]"
        yield from [line] if len(line) <= _WIDTH else ["models:", *(f"  - {path}" for path in paths.values())]
        return
    yield "models:"
    for name, model in models.items():
        yield from _format_model(name, paths[name], model, choices)


def _format_model(name: str, path: str, model: str, choices: RecipeChoices) -> Iterator[str]:
    sizes, remedies = choices.sizes.get(model, {}), choices.remedies.get(model, ())
    layers = _get_layers(model, choices)
    if choices.export is not None:
        yield from _format_make(name, choices.export)
        return
    if not sizes and not remedies and not layers:
        yield f"  {format_scalar(name)}: {path}"
        return
    yield f"  {format_scalar(name)}:"
    yield f"    path: {path}"
    if remedies:
        yield from (f"    # {remedy.why}" for remedy in remedies)
        yield f"    prepare: [{', '.join(remedy.step for remedy in remedies)}]"
    if layers:
        yield f"    split: {{layers: {list(layers)}}}    # layers with which parts begin"
    if sizes:
        yield "    input_shapes:"
    for value, sized in sizes.items():
        by_names = " from another model with these dimensions" if sized.by_names else ""
        guess = "" if sized.chosen else f"; guessed{by_names}: please check"
        shape = ", ".join(map(str, sized.sizes))
        yield f"      {format_scalar(value)}: [{shape}]    # the model declares {escape_controls(sized.declared)}{guess}"


def _get_layers(model: str, choices: RecipeChoices) -> Sequence[int]:
    decoder = choices.carried.decoder if choices.carried is not None else None
    return decoder.splits.get(model, ()) if decoder is not None else ()


def _format_make(name: str, export: ExportScript) -> Iterator[str]:
    run = [format_scalar("python"), format_scalar(escape(export.name)), '"${out}"']
    yield f"  {format_scalar(name)}:"
    yield "    make:"
    yield f"      # ${{out}} is the file to write. Please check the arguments of {escape_controls(export.name)}."
    yield f"      run: [{', '.join(run)}]"
    yield f"      files: {_format_flow([escape(file) for file in export.files])}"
    yield f"      toolchain: {_EXPORT}"


def _format_targets(choices: RecipeChoices) -> Iterator[str]:
    comment = (
        f"# One line per target. `{_get_device_key(choices.kind)}`: {choices.kind.start.words}." if choices.kind.asks else None
    )
    yield "targets:"
    if comment is not None:
        yield f"  {comment}"
    for name, value in choices.targets.items():
        yield from _format_entry(name, _build_target(choices, value))


def _get_device_key(kind: StarterKind) -> str:
    """Return the key of a target that selects the device of an EP, such as `soc`."""
    return kind.start.key or kind.start.option or kind.start.metadata or ""


def _build_target(choices: RecipeChoices, value: str) -> _Fields:
    kind, carried = choices.kind, choices.carried or CarriedOver()
    start = kind.start
    fields: dict[str, str | _Fields] = {"ep": get_short_name(kind.entry.ep)}
    options: dict[str, str | _Fields] = {}
    implied: Mapping[str, str] = {}
    if start.key is not None and value:
        fields[start.key] = _format_setting(value)
        implied = start.options
    else:
        options |= start.options
        if start.option and value:
            options[start.option] = _format_setting(value)
    if start.device or start.metadata:
        device = {key: str(setting).lower() for key, setting in start.device.items()}
        fields["device"] = {**device, **({"metadata": {start.metadata: format_scalar(escape(value))}} if start.metadata else {})}
    options |= {option: _format_setting(text) for option, text in carried.provider_options.items() if implied.get(option) != text}
    if options:
        fields["provider_options"] = options
    if carried.session_options:
        fields["session_options"] = {key: _format_setting(text) for key, text in carried.session_options.items()}
    return fields


def _format_groups(models: Mapping[str, str], folder: Path, choices: RecipeChoices) -> Iterator[str]:
    """Yield the lines for the groups. Yield only comments if each model has its own group without settings."""
    if choices.decoders:
        yield from _format_decoder_groups(models, folder, choices)
        return
    carried = choices.carried
    if carried is not None and carried.decoder is not None:
        yield from _format_carried_decoder(carried, carried.decoder, folder)
        return
    settings = _build_settings(carried) if carried is not None else {"verify": "true"} if choices.run_here else {}
    several = len(models) > 1
    sharing = {"models": [*models][:2], "share_weights": "true"} if several and choices.kind.entry.sharing.possible else {}
    shared = f"{_GROUP}: {_format_flow(sharing)}" if sharing else ""
    if choices.share_weights:
        group = _format_entry(_GROUP, {"models": [*models], "share_weights": "true", **settings})
    elif several and settings:
        group = _format_entry(_GROUP, {"models": ["*"], "separate": "true", **settings})
    elif settings:
        [model] = models
        group = (
            _format_entry(_GROUP, {"models": [model], **settings}) if model == DEFAULT_GROUPS else _format_entry(model, settings)
        )
    else:
        yield _VERIFY_HINT
        yield f"# groups: {{{shared or f'{next(iter(models))}: {{verify: true}}'}}}"
        if DEFAULT_GROUPS in models:  # The model uses the default name of groups, so name the group.
            yield f"groups: {{{_GROUP}: {_format_flow({'models': [DEFAULT_GROUPS]})}}}"
        return
    yield "groups:"
    if "verify" in settings:
        yield "  # Compares numbers on generated inputs. To fail on differences, pass your own inputs: `verify: {data: samples/*.npz}`."
    else:
        yield f"  {_VERIFY_HINT}"
    if "expect" in settings:
        yield "  # Nodes that the EP does not take may run on the CPU. Without `expect`, the EP must take every node."
    if shared and not choices.share_weights:
        yield f"  # For models that share weights, write: `{shared}`."
    yield from group


def _format_decoder_groups(models: Mapping[str, str], folder: Path, choices: RecipeChoices) -> Iterator[str]:
    """Yield a group for each decoder, and one for the other models."""
    others = [name for name, model in models.items() if model not in choices.decoders]
    groups = {name: f"{name}-group" if name == DEFAULT_GROUPS else name for name in models}
    yield "groups:"
    yield "  # Each decoder is built at two sizes: for several tokens of a prompt, and for one new token."
    for name, model in models.items():
        decoder = choices.decoders.get(model)
        if decoder is None:
            continue
        pipeline = choices.pipelines.get(model)
        prompt, context = (pipeline.prompt, pipeline.context) if pipeline is not None else (_PROMPT, _CONTEXT)
        yield f"  {format_scalar(groups[name])}:"
        yield f"    models:    # they see {context} tokens in all"
        for phase, tokens in (("prefill", prompt), ("decode", 1)):
            shapes = {value: str(list(sizes)) for value, sizes in decoder.list_shapes(tokens, context).items()}
            yield f"      - model: {format_scalar(name)}"
            yield f"        name: {phase}"
            yield f"        input_shapes: {_format_flow(shapes)}"
        yield "    share_weights: true"
        if pipeline is not None:
            yield f"    genai: {_format_genai(pipeline, {'prefill': 'prefill', 'decode': 'decode'}, folder)}"
        if choices.run_here:
            yield "    # Compares numbers on generated inputs. To fail on differences, pass your own: `verify: {data: samples/*.npz}`."
            yield f"    verify: {_format_decoder_inputs(decoder)}"
    if others:
        name = _GROUP if _GROUP not in models else f"{_GROUP}-group"
        yield from _format_entry(name, {"models": others, "separate": "true", **({"verify": "true"} if choices.run_here else {})})


def _format_carried_decoder(carried: CarriedOver, decoder: CarriedDecoder, folder: Path) -> Iterator[str]:
    """Yield the group of a decoder from another tool's configuration."""
    yield "groups:"
    yield f"  {_GROUP}:"
    yield "    models:"
    for member in decoder.members:
        texts = {key: format_scalar(text) if isinstance(text, str) else text for key, text in member.items()}
        yield f"      - {_format_flow(texts)}"
    if decoder.sets:
        yield "    # One context binary for each set."
        yield f"    share_weights: [{', '.join(map(_format_flow, decoder.sets))}]"
    if decoder.pipeline is not None:
        yield f"    genai: {_format_genai(decoder.pipeline, decoder.roles, folder)}"
    settings = _build_settings(carried)
    yield from (f"    {key}: {_format_flow(value)}" for key, value in settings.items())


def _format_genai(pipeline: GenaiPipeline, roles: Mapping[str, str | Sequence[str]], folder: Path) -> str:
    config = format_scalar(_format_path(str(pipeline.config), folder))
    return _format_flow({"config": config, "roles": roles})


def _format_decoder_inputs(decoder: Decoder) -> str:
    """Return the `verify` of a decoder as YAML. Masks select every token, because random masks select none."""
    ranges = dict.fromkeys(decoder.masks, "[1, 1]")
    return _format_flow({"data": {"ranges": ranges}}) if ranges else "true"


def _build_settings(carried: CarriedOver) -> _Fields:
    settings = {key: format_scalar(text) if key == _PREFIX else text for key, text in carried.compile.items()}
    return {
        **({"compile": settings} if settings else {}),
        **({"expect": {"fallback_nodes": carried.fallback_nodes}} if carried.fallback_nodes != "0" else {}),
    }


def _format_entry(name: str, fields: _Fields) -> Iterator[str]:
    """Yield the lines of a named mapping: a single line, or one line per field if the line would be too long."""
    line = f"  {format_scalar(name)}: {_format_flow(fields)}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"  {format_scalar(name)}:"
    for key, value in fields.items():
        yield f"    {format_scalar(key)}: {_format_flow(value)}"


def _format_flow(value: str | Sequence[str] | _Fields) -> str:
    """Return a value as YAML in flow style. Strings must be YAML. Names in lists are converted to YAML."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{format_scalar(key)}: {_format_flow(item)}' for key, item in value.items())}}}"
    return f"[{', '.join(map(format_scalar, value))}]"


def _format_setting(text: str) -> str:
    """Return the value of an option as YAML. Numbers stay unquoted."""
    return text if re.fullmatch(r"0|[1-9][0-9]*", text) else format_scalar(escape(text))


def name_models(models: Sequence[str]) -> dict[str, str]:
    """Return the models by unique name: the stem of the file, if needed with the folder's name as a prefix or a number as a suffix."""
    stems = [name_of_text(PurePath(model).stem) or "model" for model in models]
    counts = Counter(stems)
    names: dict[str, str] = {}
    taken: set[str] = set()
    for model, stem in zip(models, stems, strict=True):
        name = stem if counts[stem] == 1 else name_of_text(f"{Path(model).absolute().parent.name}-{stem}")
        unique, number = name, 2
        while unique.lower() in taken:
            unique, number = f"{name}-{number}", number + 1
        names[unique] = model
        taken.add(unique.lower())
    return names


def _format_path(model: str, folder: Path) -> str:
    if is_address(model):
        return model
    try:
        path = Path(os.path.relpath(model, folder))
    except ValueError:  # The model and the folder are on different Windows drives.
        path = Path(model).absolute()
    return escape(path.as_posix())

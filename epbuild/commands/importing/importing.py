"""`epbuild import`: write a recipe for the build of another tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from epbuild.commands.importing import olive, weight_sharing_tool, winml
from epbuild.commands.importing.build import ImportedBuild, SkippedSetting, make_import_error, parse_json_text
from epbuild.commands.importing.decoders import carry_decoder
from epbuild.commands.init.choices import FoundModel, StarterKind, find_models
from epbuild.commands.init.recipe import CarriedOver, RecipeChoices, name_models, write_recipe
from epbuild.commands.init.sizing import BadSizes, Sized, Sizing
from epbuild.core.errors import Position, Problem, escape_controls
from epbuild.core.safepath import open_regular
from epbuild.core.shown import format_path

_MAX_BYTES = 16 << 20


class ImportRequest(Struct, frozen=True):
    """Source of an import, with options of the command line."""

    words: tuple[str, ...]
    """Path of a configuration, or words of a command line."""
    output: Path
    models: tuple[str, ...] = ()
    targets: Mapping[str, str] | None = None
    """Target values by name, or None to use the targets of the source."""
    ep: str | None = None
    name: str | None = None
    force: bool = False


class ImportedRecipe(Struct, frozen=True):
    """Recipe that was written, with the settings that were not imported."""

    path: Path
    tool: str
    choices: RecipeChoices
    left: tuple[SkippedSetting, ...]
    warnings: tuple[Problem, ...]


def import_recipe(request: ImportRequest) -> ImportedRecipe:
    """Convert the source to a recipe, write the recipe, and return it. Raises PlanError, and the errors of reading and planning the recipe.

    If an error is raised, nothing is written.
    """
    build = _read_build(request)
    models = [*request.models] or [model for model in build.models if model]
    if not models:
        raise make_import_error("the source does not name an ONNX model", request.words[0], "Name the models with --model.")
    targets = _choose_targets(build, request)
    build.drop_refused(next(iter(targets.values())))
    found = _find_models(models)
    decoder = carry_decoder(build, found)
    models = models if decoder is None else [model.path for model in found]
    share = build.share_weights and decoder is None and len(models) > 1
    if share or (decoder is not None and decoder.sets):
        build.drop_prefix()
    elif build.share_weights:
        build.skip_setting("weight_sharing", "there is only one model", "Name the other models with --model as well.")
    sizes = _choose_sizes(build, found) if decoder is None or not decoder.roles else {}
    carried = CarriedOver(
        head=tuple(_build_head(build)),
        provider_options={name: value for name, value in build.provider_options.items() if name != build.kind.start.option},
        session_options=build.session_options,
        compile=build.compile,
        fallback_nodes=build.fallback_nodes,
        decoder=decoder,
    )
    choices = RecipeChoices(build.kind, models, targets, share, request.name, sizes, carried=carried)
    try:
        warnings = write_recipe(request.output, choices, overwrite=request.force)
    except FileExistsError:
        hint = "Use --force to replace it, or --output to write another file."
        raise make_import_error(f"{format_path(request.output)} already exists", request.output, hint) from None
    return ImportedRecipe(request.output, build.tool, choices, tuple(build.left), warnings)


def _read_build(request: ImportRequest) -> ImportedBuild:
    if weight_sharing_tool.is_command(request.words):
        return weight_sharing_tool.read_command(request.words)
    path = Path(request.words[0])
    if len(request.words) > 1:
        raise make_import_error(
            f"expected one file, or a command line of {weight_sharing_tool.TOOL}",
            " ".join(request.words),
            "See `epbuild import --help`.",
        )
    document = _read_document(path)
    if olive.is_configuration(document):
        return olive.read_configuration(document, path)
    if winml.is_configuration(document):
        return winml.read_configuration(document, path, request.ep)
    raise make_import_error(
        "the file is neither a configuration of Olive nor a configuration of winml",
        path,
        "A configuration of Olive has a section `passes`. A configuration of winml has a section `compile`.",
    )


def _read_document(path: Path) -> Mapping[str, Any]:
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise make_import_error(f"the file is larger than {_MAX_BYTES >> 20} MiB", path)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise make_import_error(f"the file cannot be read: {getattr(error, 'strerror', None) or error}", path) from error
    document = _parse_yaml(text, path) if path.suffix.lower() in (".yaml", ".yml") else parse_json_text(text, path)
    if not isinstance(document, dict):
        kind = "a list of configurations, one for each module" if isinstance(document, list) else "no object"
        raise make_import_error(f"the file contains {kind}", path, "Import one configuration at a time.")
    return document


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = Position(str(path), mark.line + 1, mark.column + 1) if mark is not None else path
        raise make_import_error(f"invalid YAML: {getattr(error, 'problem', None) or type(error).__name__}", where) from error


def _choose_targets(build: ImportedBuild, request: ImportRequest) -> Mapping[str, str]:
    """Return the target values by name. Raises PlanError if the EP needs a target and the source has none."""
    kind, asked = build.kind, build.kind.start.option
    if request.targets:
        return request.targets
    value = build.provider_options.get(asked or "", "")
    if value and value != "0":
        return {_find_target_name(kind, value): value}
    is_htp = build.provider_options.get("backend_type", kind.start.options.get("backend_type")) == "htp"
    if kind.start.metadata is not None or (asked == "soc_model" and "htp_arch" not in build.provider_options and is_htp):
        why = "the source does not name a target"
        why += ", so the EP would compile for a generic chip" if asked else ""
        raise make_import_error(why, request.words[0], f"Set the target with --target: {kind.start.words}.")
    return {kind.start.name: "" if kind.start.option != "device_id" else "0"}


def _find_target_name(kind: StarterKind, value: str) -> str:
    """Return a name for a target value. The number of an SoC becomes the SoC's name."""
    table = kind.entry.names.get(kind.start.option or "")
    for known in table.rows if table is not None else ():
        if value in (known.name, known.canonical, *known.spellings):
            return known.name
    return value.replace(",", "-")


def _find_models(models: Sequence[str]) -> Sequence[FoundModel]:
    """Return the models with their headers. Raises PlanError for a file that is not a model."""
    found, left = find_models(models, sure=True)
    for item in left:
        raise make_import_error(f"{item.path} cannot be compiled: {item.why.rstrip('.')}", item.path)
    return found


def _choose_sizes(build: ImportedBuild, found: Sequence[FoundModel]) -> dict[str, dict[str, Sized]]:
    """Return the sizes of inputs, by path of the model and name of the input."""
    headers = {model.path: model.header for model in found}
    sizes: dict[str, dict[str, Sized]] = {}
    for name, path in name_models(list(headers)).items():
        header = headers[path]
        if header is None:
            continue
        try:
            sizes[path] = Sizing(dict(build.sizes)).sizes_of(name, header, static=build.kind.static)
        except BadSizes as error:
            build.skip_setting(
                "sizes of inputs", str(error).rstrip("."), "Set the sizes in the recipe with the model's `input_shapes`."
            )
            sizes[path] = Sizing().sizes_of(name, header, static=build.kind.static)
    return sizes


def _build_head(build: ImportedBuild) -> list[str]:
    lines = [f"Imported by `epbuild import` from a build for {build.tool}."]
    if build.left:
        lines += ["Not imported:", *(f"- {escape_controls(str(item))}" for item in build.left)]
    return lines

"""Choices for a first recipe, from the command line or from questions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.commands.init.choices import FoundModel, LeftOut, StarterKind, find_models, find_remedies
from epbuild.commands.init.exports import find_export_script
from epbuild.commands.init.recipe import GenaiPipeline, RecipeChoices, find_plan_problem, name_models, write_recipe
from epbuild.commands.init.sizing import BadSizes, Sized, SizeQuestions, Sizes, Sizing, read_sizes
from epbuild.core.errors import Misuse, Problem
from epbuild.core.safepath import is_folder
from epbuild.core.shown import format_path
from epbuild.core.summary import Summarized, Summary
from epbuild.core.units import format_count
from epbuild.onnxfile.read.decoders import Decoder, find_decoder
from epbuild.output.genai import check_base
from epbuild.plan.outputs import GENAI_CONFIG

_MADE = "model"
"""Name of a model that a script makes."""


class BadAnswer(Misuse):
    """Error for an invalid answer or option of `init` or `import`."""


class Questions(SizeQuestions, Protocol):
    """Interface that asks users questions and shows the models found."""

    def models(self) -> Sequence[str]:
        """Ask for models, and return files, folders or globs."""

    def kind(self) -> StarterKind:
        """Ask for the EP and its packaging, and return them."""

    def targets(self, kind: StarterKind) -> Sequence[str]:
        """Ask for targets, and return them as VALUE or NAME=VALUE."""

    def share_weights(self) -> bool:
        """Ask whether the models share one context binary, and return the answer."""

    def show_found(self, found: Sequence[FoundModel]) -> None:
        """Show the models that were found."""

    def show_left(self, left: Sequence[LeftOut]) -> None:
        """Show the models that are excluded."""

    def show_static(self, kind: StarterKind) -> None:
        """Explain that the EP needs static shapes."""


class Given(Struct, frozen=True):
    """Command line of `init`. `Questions` asks for empty and missing values."""

    places: Sequence[str]
    """Folder of the recipe, or models for a recipe in the current folder."""
    models: Sequence[str]
    sizes: Sequence[str]
    kind: StarterKind | None
    targets: Sequence[str]
    share_weights: bool | None
    name: str | None
    output: Path
    force: bool


class FirstRecipe(Summarized, Struct, frozen=True):
    """Recipe that was written, with its choices and warnings."""

    path: Path
    choices: RecipeChoices
    found: Sequence[FoundModel]
    left: Sequence[LeftOut] = field(default_factory=list)
    """Excluded models that the user has not been shown yet."""
    warnings: Sequence[Problem] = ()

    def summarize(self) -> Summary:
        """Return the models of the recipe, the excluded models with the reasons, and the warnings."""
        choices = self.choices
        counts = f"{format_count(len(choices.models), 'model')} for {format_count(len(choices.targets), 'target')}"
        rows = [(path, "") for path in choices.models]
        rows += [(item.path, f"skipped: {item.why}") for item in self.left]
        rows += [("", f"warning: {problem}") for problem in self.warnings]
        return Summary(f"{format_path(self.path)}: {counts}", ("model", ""), rows)


def write_first_recipe(given: Given, questions: Questions | None) -> FirstRecipe:
    """Write a recipe for the models that are found, and return it. Without `questions`, a missing answer is an error.

    Raises BadAnswer, and the errors of reading and planning the recipe.
    """
    sizes = dict(map(parse_size, given.sizes))
    folder, named = _split_places(given.places)
    path = folder / given.output
    if path.exists() and not given.force:
        raise _make_exists_error(path)
    found, left = _find_models(folder, named, given.models, questions)
    asked = _is_incomplete(given, found, questions)
    kind = given.kind or _require_questions(questions).kind()
    targets = given.targets or (_require_questions(questions).targets(kind) if kind.asks else [kind.start.example])
    if questions is not None and kind.static and any(model.is_open for model in found):
        questions.show_static(kind)
    sizing = Sizing(sizes, questions)
    decoders = _find_decoders(given, found, kind)
    names = name_models([model.path for model in found])
    sized, unsized = choose_sizes(names, found, sizing, decoders, static=kind.static)
    chosen = {names[name]: sizes for name, sizes in sized.items()}
    left += unsized
    share = given.share_weights
    if share is None:
        share = questions is not None and asked and not decoders and len(chosen) > 1 and questions.share_weights()
    choices = RecipeChoices(
        kind=kind,
        models=list(chosen),
        targets=name_targets(targets),
        share_weights=share,
        name=given.name,
        sizes=chosen,
        remedies={model.path: find_remedies(model, kind) for model in found},
        decoders=decoders,
        pipelines=find_pipelines(decoders),
        export=next((model.export for model in found), None),
    )
    choices, refused = _exclude_unplannable(path, choices, sure=set(given.models))
    left += refused
    if not choices.models:
        raise make_no_model_error(left)
    try:
        warnings = write_recipe(path, choices, overwrite=given.force)
    except FileExistsError:
        raise _make_exists_error(path) from None
    return FirstRecipe(path, choices, found, left, warnings)


def _is_incomplete(given: Given, found: Sequence[FoundModel], questions: Questions | None) -> bool:
    """Return whether an answer is missing. Raises BadAnswer if an answer is missing and `questions` is None."""
    kind = given.kind
    missing = [] if found else ["--model"]
    missing += [] if kind else ["--ep"]
    missing += [] if given.targets or not ((kind and kind.asks) or (kind is None and questions is None)) else ["--target"]
    if missing and questions is None:
        raise BadAnswer(f"'epbuild init' needs a terminal to ask questions; without one, pass {', '.join(missing)}")
    return bool(missing)


def _require_questions(questions: Questions | None) -> Questions:
    if questions is None:
        raise AssertionError("a missing answer was accepted")
    return questions


def _split_places(places: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of the recipe, and the models among `places`. Raises BadAnswer for a path that does not exist."""
    if len(places) == 1 and is_folder(Path(places[0])):
        return Path(places[0]), []
    for place in places:
        if not any(sign in place for sign in "*?[:") and not Path(place).exists():
            raise BadAnswer(f"'{place}' does not exist: name a folder of models, or model files and globs")
    return Path(), list(places)


def _find_models(
    folder: Path, named: Sequence[str], flagged: Sequence[str], questions: Questions | None
) -> tuple[list[FoundModel], list[LeftOut]]:
    """Return the models that were named or are in the folder, and the excluded models that the user has not seen yet."""
    found, left = find_models([*named, *flagged], sure=not named)
    if not named and not flagged:
        found, left = find_models([str(folder)] if str(folder) != "." else ["*.onnx"])
        left = [item for item in left if Path(item.path).is_file()]
        export = find_export_script(folder) if not found and not left else None
        found = [FoundModel(_MADE, export=export)] if export is not None else found
    while not found and questions is not None:
        questions.show_left(left)
        found, left = find_models(questions.models())
    if left and not found:
        raise make_no_model_error(left)
    if questions is not None:
        questions.show_found(found)
        questions.show_left(left)
        left = []
    return found, left


def _find_decoders(given: Given, found: Sequence[FoundModel], kind: StarterKind) -> dict[str, Decoder]:
    """Return the decoders to build at two sizes, by path. There are none if the user chose sizes or one group for all models."""
    can_share = kind.static and kind.entry.sharing.possible
    if not can_share or given.sizes or (given.share_weights and len(found) > 1):
        return {}
    decoders = {model.path: find_decoder(model.header) for model in found if model.header is not None}
    return {path: decoder for path, decoder in decoders.items() if decoder is not None}


def find_pipelines(decoders: Mapping[str, Decoder]) -> dict[str, GenaiPipeline]:
    """Return the usable configurations of onnxruntime-genai in the folders of decoders, by path of the decoder.

    onnxruntime-genai passes a cache of fixed size from one run to the next, so a decoder with a growing cache has no pipeline.
    """
    found = {path: read_pipeline(path) for path, decoder in decoders.items() if decoder.keeps_cache_size}
    return {path: pipeline for path, pipeline in found.items() if pipeline is not None}


def read_pipeline(path: str) -> GenaiPipeline | None:
    """Return the configuration of onnxruntime-genai beside a decoder, or None if it is missing or has no sliding window of the prompt."""
    config = Path(path).with_name(GENAI_CONFIG)
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if check_base(document):
        return None
    window = document["model"].get("decoder", {}).get("sliding_window")
    prompt = window.get("window_size") if isinstance(window, dict) else None
    return GenaiPipeline(config, prompt, document["model"]["context_length"]) if isinstance(prompt, int) and prompt > 1 else None


def choose_sizes(
    names: Mapping[str, str], found: Sequence[FoundModel], sizing: Sizing, decoders: Collection[str] = (), *, static: bool
) -> tuple[dict[str, dict[str, Sized]], list[LeftOut]]:
    """Return the sizes of the inputs by name of the model, and the models for which there are no valid sizes. Skip `decoders`.

    `names` maps the models' names to their paths. Raises BadAnswer if a given size is invalid or is not used.
    """
    chosen: dict[str, dict[str, Sized]] = {}
    left = []
    headers = {model.path: model.header for model in found}
    for name, path in names.items():
        header = headers[path]
        try:
            chosen[name] = {} if header is None or path in decoders else sizing.sizes_of(name, header, static=static)
        except BadSizes as error:
            if sizing.given:
                raise BadAnswer(str(error)) from error
            left.append(LeftOut(path, str(error)))
    unused = sizing.given.keys() - sizing.used
    if unused:
        raise BadAnswer(
            f"no model has an input '{min(unused)}': expected INPUT=SIZES, or MODEL:INPUT=SIZES with the name of a model"
        )
    return chosen, left


def _exclude_unplannable(path: Path, choices: RecipeChoices, sure: set[str]) -> tuple[RecipeChoices, list[LeftOut]]:
    """Exclude models that cannot be planned even as the only model. Keep models in `sure`, so that planning reports their errors.

    Return the choices with the remaining models, and the excluded models.
    """
    left = []
    if len(choices.models) > 1 and not choices.share_weights:
        for model in choices.models:
            why = None if model in sure else find_plan_problem(path, replace(choices, models=[model]))
            if why is not None:
                left.append(LeftOut(model, why[:1].upper() + why[1:]))
        gone = {item.path for item in left}
        if gone != set(choices.models):  # If no model can be planned, the models are not the cause.
            return replace(choices, models=[model for model in choices.models if model not in gone]), left
    return choices, []


def parse_size(text: str) -> tuple[str, Sizes]:
    """Return the input and the sizes of `INPUT=SIZES`. Raises BadAnswer."""
    key, equals, sizes = text.rpartition("=")
    if not equals or not key:
        raise BadAnswer(f"invalid size '{text}': expected INPUT=SIZES, such as x=1,3,320,320")
    try:
        return key, read_sizes(sizes)
    except BadSizes as error:
        raise BadAnswer(str(error)) from error


def name_targets(targets: Sequence[str]) -> dict[str, str]:
    """Return the values of targets by name. The default name of a target is its value. Raises BadAnswer."""
    named: dict[str, str] = {}
    for target in targets:
        name, equals, value = target.partition("=")
        if equals and not (name and value):
            raise BadAnswer(f"invalid target '{target}': expected VALUE or NAME=VALUE")
        if name in named:
            raise BadAnswer(f"two targets have the name '{name}': name each target with NAME=VALUE")
        named[name] = value if equals else name
    return named


def make_no_model_error(left: Sequence[LeftOut]) -> BadAnswer:
    """Return the error for models that are all excluded, with the reasons."""
    return BadAnswer(f"no usable model: {'; '.join(f'{item.path}: {item.why}' for item in left)}")


def _make_exists_error(path: Path) -> BadAnswer:
    return BadAnswer(f"{format_path(path)} already exists; use --force to replace it, or --output to write another file")

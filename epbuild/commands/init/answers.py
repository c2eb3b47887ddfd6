"""Answers about a first recipe: from the command line, else from questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.commands.init.kinds import StarterKind
from epbuild.commands.init.recipe import RecipeChoices, model_names, why_not, write_recipe
from epbuild.commands.init.sizing import BadSizes, Sized, SizeQuestions, Sizes, Sizing, read_sizes
from epbuild.commands.init.sources import FoundModel, LeftOut, find_models
from epbuild.core.errors import Problem
from epbuild.core.safepath import is_folder


class BadAnswer(ValueError):
    """A command line that no recipe can be made from; the text is a sentence without its full stop."""


class Questions(SizeQuestions, Protocol):
    """Asks a person, and shows what was found."""

    def models(self) -> Sequence[str]:
        """Files, folders or globs with models."""

    def kind(self) -> StarterKind:
        """The EP, in its packaging."""

    def targets(self, kind: StarterKind) -> Sequence[str]:
        """What to compile for."""

    def share_weights(self) -> bool:
        """Whether the models share one context binary."""

    def show_found(self, found: Sequence[FoundModel]) -> None:
        """Show the models."""

    def show_left(self, left: Sequence[LeftOut]) -> None:
        """Show what is left out."""

    def show_static(self, kind: StarterKind) -> None:
        """Show that sizes are asked for since the EP takes no open ones."""


class Given(Struct, frozen=True):
    """What a command line holds of a first recipe; what is empty or None may be asked for."""

    places: Sequence[str]
    """The folder for the recipe, or models for one in the current folder."""
    models: Sequence[str]
    sizes: Sequence[str]
    kind: StarterKind | None
    targets: Sequence[str]
    share_weights: bool | None
    name: str | None
    output: Path
    force: bool


class FirstRecipe(Struct, frozen=True):
    """A recipe that was written, and what there is to know of it."""

    path: Path
    choices: RecipeChoices
    found: Sequence[FoundModel]
    left: Sequence[LeftOut] = field(default_factory=list)
    """What was found and is not in it, as far as no `Questions` has shown it."""
    warnings: Sequence[Problem] = ()


def write_first_recipe(given: Given, questions: Questions | None) -> FirstRecipe:
    """Write a recipe for the models that are found; `questions` is None where nobody can be asked.

    Raises BadAnswer, and what reading and planning the recipe raises.
    """
    sizes = dict(map(_read_size, given.sizes))
    folder, named = _places(given.places)
    path = folder / given.output
    if path.exists() and not given.force:
        raise _exists(path)
    found, left = _find(folder, named, given.models, questions)
    asked = _is_incomplete(given, found, questions)
    kind = given.kind or _asked(questions).kind()
    targets = given.targets or (_asked(questions).targets(kind) if kind.asks else [kind.start.example])
    if questions is not None and kind.static and any(model.is_open for model in found):
        questions.show_static(kind)
    sizing = Sizing(sizes, questions)
    chosen, unsized = _sized(found, sizing, kind)
    left += unsized
    unused = sizes.keys() - sizing.used
    if unused:
        raise BadAnswer(f"no model has an input '{min(unused)}'; write INPUT=SIZES, or MODEL:INPUT=SIZES with a model's name")
    share = given.share_weights
    if share is None:
        share = questions is not None and asked and len(chosen) > 1 and questions.share_weights()
    choices = RecipeChoices(kind, list(chosen), named_targets(targets), share, given.name, chosen)
    choices, refused = _possible(path, choices, sure=set(given.models))
    left += refused
    if not choices.models:
        raise _no_model(left)
    try:
        warnings = write_recipe(path, choices, overwrite=given.force)
    except FileExistsError:
        raise _exists(path) from None
    return FirstRecipe(path, choices, found, left, warnings)


def _is_incomplete(given: Given, found: Sequence[FoundModel], questions: Questions | None) -> bool:
    """Whether something has to be asked for. Raises BadAnswer where nobody can be asked."""
    kind = given.kind
    missing = [] if found else ["--model"]
    missing += [] if kind else ["--ep"]
    missing += [] if given.targets or not ((kind and kind.asks) or (kind is None and questions is None)) else ["--target"]
    if missing and questions is None:
        raise BadAnswer(f"'epbuild init' asks on a terminal only; here it needs {', '.join(missing)}")
    return bool(missing)


def _asked(questions: Questions | None) -> Questions:
    if questions is None:
        raise AssertionError("what is missing was refused")
    return questions


def _places(places: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder that the recipe goes into, and the models that are named."""
    if len(places) == 1 and is_folder(Path(places[0])):
        return Path(places[0]), []
    for place in places:
        if not any(sign in place for sign in "*?[:") and not Path(place).exists():
            raise BadAnswer(f"'{place}' does not exist: name a folder, or models by files and globs")
    return Path(), list(places)


def _find(
    folder: Path, named: Sequence[str], flagged: Sequence[str], questions: Questions | None
) -> tuple[list[FoundModel], list[LeftOut]]:
    """The models to start with: those that are named, else those of the folder; and what is left out, unless it was shown."""
    found, left = find_models([*named, *flagged], sure=not named)
    if not named and not flagged:
        found, left = find_models([str(folder)] if str(folder) != "." else ["*.onnx"])
        left = [item for item in left if Path(item.path).is_file()]
    while not found and questions is not None:
        questions.show_left(left)
        found, left = find_models(questions.models())
    if left and not found:
        raise _no_model(left)
    if questions is not None:
        questions.show_found(found)
        questions.show_left(left)
        left = []
    return found, left


def _sized(found: Sequence[FoundModel], sizing: Sizing, kind: StarterKind) -> tuple[dict[str, dict[str, Sized]], list[LeftOut]]:
    """The sizes of the models' inputs, by their paths, and the models for which there are none."""
    chosen: dict[str, dict[str, Sized]] = {}
    left = []
    headers = {model.path: model.header for model in found}
    for name, path in model_names(list(headers)).items():
        header = headers[path]
        try:
            chosen[path] = sizing.sizes_of(name, header, static=kind.static) if header is not None else {}
        except BadSizes as error:
            if sizing.given:
                raise BadAnswer(str(error)) from error
            left.append(LeftOut(path, str(error)))
    return chosen, left


def _possible(path: Path, choices: RecipeChoices, sure: set[str]) -> tuple[RecipeChoices, list[LeftOut]]:
    """The choices without the models that cannot be planned, each by itself; those that are `sure` to be meant stay, to be refused."""
    left = []
    if len(choices.models) > 1 and not choices.share_weights:
        for model in choices.models:
            why = None if model in sure else why_not(path, replace(choices, models=[model]))
            if why is not None:
                left.append(LeftOut(model, why[:1].upper() + why[1:]))
        gone = {item.path for item in left}
        if gone != set(choices.models):  # what stops all of them is the fault of none of them
            return replace(choices, models=[model for model in choices.models if model not in gone]), left
    return choices, []


def _read_size(text: str) -> tuple[str, Sizes]:
    key, equals, sizes = text.rpartition("=")
    if not equals or not key:
        raise BadAnswer(f"invalid size: {text}; write INPUT=SIZES, such as x=1,3,320,320")
    try:
        return key, read_sizes(sizes)
    except BadSizes as error:
        raise BadAnswer(str(error)) from error


def named_targets(targets: Sequence[str]) -> dict[str, str]:
    """Each target's value by its name, which is the value where none is given."""
    named: dict[str, str] = {}
    for target in targets:
        name, equals, value = target.partition("=")
        if equals and not (name and value):
            raise BadAnswer(f"invalid target: {target}; write VALUE or NAME=VALUE")
        if name in named:
            raise BadAnswer(f"two targets are called '{name}'; write NAME=VALUE to keep them apart")
        named[name] = value if equals else name
    return named


def _no_model(left: Sequence[LeftOut]) -> BadAnswer:
    return BadAnswer(f"no model to start with: {'; '.join(f'{item.path}: {item.why}' for item in left)}")


def _exists(path: Path) -> BadAnswer:
    return BadAnswer(f"{path} exists already; take --force to replace it, or --output for another file")

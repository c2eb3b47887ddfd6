"""`epbuild add`: models and targets added to a recipe, with nothing else changed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.catalog import entry as find_packaging
from epbuild.catalog.catalog import known_eps
from epbuild.commands.init.answers import BadAnswer, choose_sizes, make_no_model_error, name_targets, parse_size
from epbuild.commands.init.choices import (
    FoundModel,
    LeftOut,
    StarterKind,
    find_models,
    find_remedies,
    is_address,
    list_starter_kinds,
)
from epbuild.commands.init.recipe import (
    PRIVATE,
    RecipeChoices,
    check_draft,
    define_model,
    define_target,
    define_toolchain,
    name_models,
)
from epbuild.commands.init.sizing import SizeQuestions, Sizing
from epbuild.core.atomic import new_file, write_file
from epbuild.core.errors import Position, Problem, RecipeError
from epbuild.recipe.insertion import Definition, insert_definition
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import Recipe
from epbuild.recipe.names import name_of_text, name_problem
from epbuild.recipe.requirement import read_requirement


class Addition(Struct, frozen=True):
    """Definitions that were added to a recipe."""

    path: Path
    section: str
    definitions: Sequence[Definition]
    guesses: int = 0
    """Number of inputs with guessed sizes."""
    left: Sequence[LeftOut] = ()
    """Files that were not added."""
    unused: Sequence[str] = ()
    """Names of added definitions that no group uses."""
    warnings: Sequence[Problem] = ()


def add_models(path: Path, places: Sequence[str], sizes: Sequence[str], questions: SizeQuestions | None) -> Addition:
    """Add models to the recipe at `path`. Each place is a file, folder, glob or address, optionally as NAME=PLACE.

    If the targets need static shapes, sizes of open dimensions are given, asked with `questions`, or guessed. Raises BadAnswer, and the
    errors of reading and planning the recipe. If an error is raised, nothing is written.
    """
    recipe, broken = _load_recipe(path)
    named, found, left = _find_new_models(recipe, places)
    kinds = list(_find_kinds(recipe).values())
    chosen, unsized = choose_sizes(
        named, found, Sizing(dict(map(parse_size, sizes)), questions), static=any(kind.static for kind in kinds)
    )
    remedies = {
        model.path: list({remedy.step: remedy for kind in kinds for remedy in find_remedies(model, kind)}.values())
        for model in found
    }
    choices = RecipeChoices(next(iter(kinds or list_starter_kinds().values())), [], {}, remedies=remedies)
    definitions = [
        define_model(name, named[name], path.parent, replace(choices, sizes={named[name]: sizes}))
        for name, sizes in chosen.items()
    ]
    if not definitions:
        raise make_no_model_error([*left, *unsized])
    edited, warnings = _edit(path, [("models", each) for each in definitions], broken)
    guesses = sum(not sized.chosen for model in chosen.values() for sized in model.values())
    grouped = {member.model.name for group in edited.groups.values() for member in group.members}
    unused = [each.name for each in definitions if each.name not in grouped]
    return Addition(path, "models", definitions, guesses, [*left, *unsized], unused, warnings)


def add_targets(path: Path, values: Sequence[str], ep: str | None) -> Addition:
    """Add targets to the recipe at `path`. `values` are VALUE or NAME=VALUE, as in `init`. `ep` is the name of a starter kind.

    Without `ep`, use the EP of the targets in the recipe. Raises BadAnswer, and the errors of reading and planning the recipe. If an error
    is raised, nothing is written.
    """
    recipe, broken = _load_recipe(path)
    kind = list_starter_kinds()[ep] if ep is not None else _find_only_kind(recipe)
    if not values and kind.asks:
        raise BadAnswer(f"name the target: {kind.start.words}")
    targets = _name_targets(kind, values or [kind.start.example])
    choices = RecipeChoices(kind, [], targets)
    toolchain = define_toolchain(kind)
    needs = toolchain is not None and toolchain.name not in recipe.toolchains
    definitions = [define_target(name, choices) for name in targets]
    edits = [("targets", each) for each in definitions]
    edited, warnings = _edit(path, [("toolchains", toolchain), *edits] if toolchain is not None and needs else edits, broken)
    used = {target.name for group in edited.groups.values() for target in group.targets}
    unused = [name for name in targets if name not in used]
    return Addition(path, "targets", definitions, unused=unused, warnings=warnings)


def _load_recipe(path: Path) -> tuple[Recipe, RecipeError | None]:
    """Return the recipe, and its error if it is not valid yet. Raises RecipeError if the recipe cannot be read."""
    try:
        return load(path), None
    except BrokenRecipe as error:
        return error.rest, error


def _edit(path: Path, edits: Sequence[tuple[str, Definition]], broken: RecipeError | None) -> tuple[Recipe, tuple[Problem, ...]]:
    """Insert definitions into sections of a recipe, and write it if it can be planned. Return the recipe and the planner's warnings.

    Raises `broken`, the error of the recipe before the edit, if the recipe is still not valid.
    """
    content = path.read_bytes()
    for section, definition in edits:
        content = insert_definition(content, str(path), section, definition)
    try:
        recipe, warnings = check_draft(path, content)
    except RecipeError as error:
        raise (broken or error) from None
    with new_file(path) as new:
        write_file(new, content, durable=False, mode=PRIVATE)
        shutil.copymode(path, new)
    return recipe, warnings


def _find_new_models(recipe: Recipe, places: Sequence[str]) -> tuple[dict[str, str], list[FoundModel], list[LeftOut]]:
    """Return the models at `places` that the recipe does not have: paths by name, and the models. Also return the excluded files.

    A model without a name is skipped if another place has the same file. Raises BadAnswer if two models have the same name.
    """
    known = {_locate(model.path, recipe.file.parent): name for name, model in recipe.models.items() if model.path}
    named: dict[str, str] = {}
    unnamed: dict[str, str] = {}  # by location
    found: list[FoundModel] = []
    left: list[LeftOut] = []
    for text in places:
        name, place = _split_name(text)
        models, skipped = find_models([place], sure=True)
        left += skipped
        if name and len(models) > 1:
            raise BadAnswer(f"'{place}' has {len(models)} models, so they cannot have the name '{name}'")
        for model in models:
            location = _locate(model.path, Path())
            if name in named:
                raise _make_same_name_error(name)
            if name:
                named[name] = model.path
            elif location in known:
                left.append(LeftOut(model.path, f"It is the model '{known[location]}' of the recipe."))
                continue
            else:
                unnamed[location] = model.path
            found.append(model)
    if not found:
        raise make_no_model_error(left)
    elsewhere = {_locate(model, Path()) for model in named.values()}
    others = name_models([model for location, model in unnamed.items() if location not in elsewhere])
    if same := named.keys() & others.keys():
        raise _make_same_name_error(min(same))
    return {**named, **others}, found, left


def _make_same_name_error(name: str) -> BadAnswer:
    return BadAnswer(f"two models have the name '{name}': choose another name, as in NAME=MODEL")


def _split_name(text: str) -> tuple[str, str]:
    """Return the name and the place of NAME=PLACE. The name is empty if the text is only a place."""
    name, equals, place = text.partition("=")
    if not (equals and place) or Path(text).exists() or name_problem(name, Position("", 1, 1)):
        return "", text
    return name, place


def _locate(place: str, folder: Path) -> str:
    return place if is_address(place) else str((folder / place).resolve())


def _find_kinds(recipe: Recipe) -> dict[str, StarterKind]:
    """Return the EPs of the recipe's targets, each in its packaging, as items of `list_starter_kinds()`."""
    entries = []
    for target in recipe.targets.values():
        toolchain = recipe.toolchains.get(target.toolchain.name)
        packages = {read_requirement(text).distribution for text in toolchain.packages} if toolchain is not None else set()
        entries += [find_packaging(choice.ep.name, packages) for choice in target.eps if choice.ep.name in known_eps()]
    return {name: kind for entry in entries for name, kind in list_starter_kinds().items() if kind.entry == entry}


def _find_only_kind(recipe: Recipe) -> StarterKind:
    kinds = _find_kinds(recipe)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    reason = f"the recipe has targets for {' and '.join(kinds)}" if kinds else "the recipe has no target to infer the EP from"
    raise BadAnswer(f"{reason}; set the EP with --ep, one of {', '.join(kinds or list_starter_kinds())}")


def _name_targets(kind: StarterKind, values: Sequence[str]) -> Mapping[str, str]:
    """Return the values of targets by name. The default name of a product is the name of its SoC. Raises BadAnswer."""
    table = kind.entry.names.get(kind.start.option or "")
    named = []
    for value in values:
        known = table.find(value) if table is not None and "=" not in value else None
        named.append(value if "=" in value else f"{name_of_text(known or value)}={value}")
    return name_targets(named)

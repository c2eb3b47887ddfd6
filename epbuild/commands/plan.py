"""The plan of a recipe, and what of it is out of date."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from epbuild.cache.blobs import BlobStore
from epbuild.cache.location import cache_directory, toolchain_directory
from epbuild.cache.memory import Configuration
from epbuild.cache.workspace import Workspace
from epbuild.commands.locked import check_lock, hold_lock, locked_wheels
from epbuild.commands.remote import RemoteModels
from epbuild.core.defaults import WORKSPACE
from epbuild.core.errors import Problem, RecipeError
from epbuild.engine.events import shown_path
from epbuild.plan.planner import make_plan, problems_of_the_rest
from epbuild.plan.result import action_records
from epbuild.plan.steps import Plan
from epbuild.recipe.load import BrokenRecipe, load
from epbuild.recipe.model import ModelSpec, Recipe
from epbuild.survey.orphans import Outputs
from epbuild.survey.scope import Scope, find_scope
from epbuild.survey.snapshot import variables_of
from epbuild.survey.status import Survey, Surveyor
from epbuild.toolchain.environment import prepare, ready

_NOTHING = Plan((), {})

Fetch = Callable[[RemoteModels, ModelSpec], Path]
"""Brings a remote model here."""


@dataclass(frozen=True)
class Request:
    """What a user asked for: a recipe, the steps of it (globs over ids; none: all), and how to go about it."""

    recipe: Path
    selection: tuple[str, ...] = ()
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    keep_going: bool = False
    settings: tuple[str, ...] = ()
    """Variables of the recipe to set, as `vars.name=value`."""
    memory: int | None = None
    """Bytes of memory for all that runs at once; None: what there is."""
    locked: bool = False
    """Whether only what the recipe's lock has may be built with."""
    rebuild_and_compare: bool = False
    """Whether to make everything again afterwards, and compare."""
    every_model: bool = False
    """Whether to report of every model how far it is compiled, and not only of those that were to do."""
    retry: bool = False
    """Whether to try again what failed before, although nothing that it depends on has changed."""


class ReadVariables(Mapping[str, str]):
    """The environment of this process, with a note of every variable that was read."""

    def __init__(self) -> None:
        self.seen: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str:
        self.seen[name] = os.environ.get(name)
        return os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def read_plan(
    request: Request, fetch: Fetch | None = None, environment: Mapping[str, str] | None = None, scope: Scope | None = None
) -> tuple[Recipe, Plan]:
    """The recipe and its plan, or the part of them in a `scope`; writes nothing but the memory that the recipe fits its schema.

    A remote model that is needed and not here goes through `fetch`; without it, its steps are planned with its files unknown. The recipe
    reads its variables in `environment` (None: this process's). Raises RecipeError, PlanError, and what `fetch` raises.
    """
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        remote = RemoteModels(workspace, BlobStore(cache_directory()))
        if scope is not None and not scope.again:
            return scope.recipe, Plan((), {}, scope.warnings(_NOTHING))
        recipe = scope.recipe if scope is not None else _read_recipe(request, workspace, environment)
        if request.locked:
            check_lock(recipe, fits=scope is not None)  # before anything is fetched
        if fetch is not None:
            remote = replace(remote, wheels=locked_wheels(recipe))
        selection = scope.selection if scope is not None else request.selection
        plan = make_plan(recipe, selection, remote.known if fetch is None else lambda model: fetch(remote, model))
        if any(part.genai is not None for emission in plan.emissions.values() for part in emission.parts):
            from epbuild.output.genai_files import check_pipelines  # few recipes have any

            check_pipelines(plan)
        if scope is not None:
            return recipe, replace(plan, warnings=scope.warnings(plan))
        valid = _valid(request)
        if recipe.digest and workspace.fact(valid) != recipe.digest:
            workspace.record_fact(valid, recipe.digest)
    return recipe, plan


def _read_recipe(request: Request, workspace: Workspace, environment: Mapping[str, str] | None) -> Recipe:
    valid = _valid(request)
    try:
        return load(
            request.recipe,
            is_known_valid=lambda digest: workspace.fact(valid) == digest,
            environment=environment,
            settings=request.settings,
        )
    except BrokenRecipe as error:
        # Together, so that one run shows all that there is to mend.
        raise RecipeError(*error.problems, *problems_of_the_rest(error.rest)) from error


def _valid(request: Request) -> str:
    return f"valid recipe {request.recipe.name!a}"


def scope_of(request: Request, variables: Mapping[str, str], wanted: Sequence[str] = ()) -> Scope | None:
    """The part of what is asked for that has to be looked at, and the steps that match `wanted`; None: all has to be.

    The `variables` that the recipe reads are read.
    """
    if request.rebuild_and_compare or request.every_model:
        return None
    scope = find_scope(request.recipe, request.settings, request.selection, wanted)
    if scope is None or (request.locked and not scope.is_locked):
        return None
    for name in variables_of(scope.look.facts):
        variables.get(name)
    return scope


def survey(request: Request, wanted: Sequence[str] = ()) -> Survey:
    """What is out of date, without making anything: not even a toolchain that is missing. Raises EpbuildError.

    The steps that match `wanted` are looked at even where nothing has changed for them.
    """
    variables = ReadVariables()
    scope = scope_of(request, variables, wanted)
    recipe, plan = read_plan(request, environment=variables, scope=scope)
    lock = hold_lock(recipe, plan, strict=request.locked, fits=scope is not None)
    cache, home = cache_directory(), toolchain_directory()
    environments = {
        name: prepare(toolchain, recipe.directory, home, entries, lock.environments.get(name), packages)
        for name, (toolchain, entries, packages) in plan.toolchains().items()
        if ready(toolchain, recipe.directory, home, lock.environments.get(name))
    }
    with Workspace.open(workspace_of(request.recipe), create=False) as workspace:
        configuration = Configuration.of(recipe.file, request.settings, variables.seen)
        surveyor = Surveyor(workspace, BlobStore(cache), action_records(cache), recipe, configuration)
        doubts = (*_unreadable(workspace), *lock.warnings, *lock.deviations(plan, environments, surveyor.digests))
        found = surveyor.survey(replace(plan, warnings=(*plan.warnings, *doubts)), environments, scope)
        return with_orphans(found, surveyor.outputs, request)


def with_orphans(found: Survey, outputs: Outputs, request: Request) -> Survey:
    """`found` with the outputs that nobody asks for any more; from some steps alone it is not known what the whole recipe asks for."""
    if request.selection or found.scope is not None:  # a snapshot is only taken where there was no orphan
        return found
    return replace(found, orphans=outputs.orphans(emission.path for emission in found.plan.emissions.values()))


def workspace_of(recipe: Path) -> Path:
    """The folder beside a recipe in which epbuild keeps what it remembers."""
    return recipe.absolute().parent / WORKSPACE


def _unreadable(workspace: Workspace) -> Iterator[Problem]:
    """That this user may not know what was built here, where it is so."""
    if workspace.unreadable:
        message = f"what was built here is not known: this user may not read {shown_path(workspace.state)}"
        yield Problem("EPB513", message, None, "Do this as the user whose workspace it is, or get permission to read it.")
